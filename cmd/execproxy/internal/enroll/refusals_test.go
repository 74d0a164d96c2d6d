package enroll

import (
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRefusals(t *testing.T) {
	status := func(code int, reason, message string) func(string, http.ResponseWriter, *http.Request) bool {
		return func(_ string, w http.ResponseWriter, _ *http.Request) bool {
			fail(w, code, reason, message, "")
			return true
		}
	}
	text := func(code int, kind, body string) func(string, http.ResponseWriter, *http.Request) bool {
		return func(_ string, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Location", "https://elsewhere.test/")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	for _, tc := range []struct {
		name   string
		change func(a *api, c *Client, o *Order)
		want   []string
		code   int // 0: no APIError
	}{
		{"rbac", func(a *api, _ *Client, _ *Order) { a.forbidden["create"] = true }, []string{
			`User "jane" cannot create`, "(HTTP 403)",
			"kubectl create clusterrole execproxy-enroll --verb=create,get,list,watch --resource=certificatesigningrequests.certificates.k8s.io; " +
				"kubectl create clusterrolebinding execproxy-enroll:jane --clusterrole=execproxy-enroll --user=jane"}, 403},
		{"rbac of a user that bites", func(a *api, _ *Client, _ *Order) {
			a.user, a.forbidden["create"] = `o'neil"; rm -rf /`, true
		}, []string{`clusterrolebinding execproxy-enroll --clusterrole=execproxy-enroll --user='o'\''neil"; rm -rf /'`}, 403},
		{"rbac of a user that cannot be shown", func(a *api, _ *Client, _ *Order) {
			a.user, a.forbidden["create"] = "a\n\x1b[2Jb", true
		}, []string{"--user=USER"}, 403},
		{"nobody", func(a *api, _ *Client, _ *Order) {
			a.user, a.forbidden["create"] = "system:anonymous", true
		}, []string{"no credentials reached the API server"}, 403},
		{"adopting is forbidden", func(a *api, _ *Client, _ *Order) {
			a.forbidden["get"], a.before = true, func(verb string, w http.ResponseWriter, _ *http.Request) bool {
				if verb == "create" {
					fail(w, 409, "AlreadyExists", "exists", "")
				}
				return verb == "create"
			}
		}, []string{"reading certificate signing request execproxy-", `cannot get`}, 403},
		{"system:masters", func(_ *api, _ *Client, o *Order) {
			csr, err := NewRequest(subjectKey, pkix.Name{CommonName: "jane", Organization: []string{"system:masters"}})
			if err == nil {
				o.CSR = csr
			}
		}, []string{"system:masters group is not allowed", "choose another organization"}, 403},
		{"admission", func(a *api, _ *Client, _ *Order) {
			a.before = status(403, "Forbidden", "admission webhook says no")
		}, []string{"admission webhook says no (HTTP 403)", "a rule of the cluster refuses it"}, 403},
		{"unauthorized", func(a *api, _ *Client, _ *Order) { a.before = status(401, "Unauthorized", "Unauthorized") },
			[]string{"use credentials that this API server accepts"}, 401},
		{"no such API", func(a *api, c *Client, _ *Order) { c.Server = c.Server.JoinPath("elsewhere") },
			[]string{"404 page not found (HTTP 404)", "1.19 or later"}, 404},
		{"life too short", func(_ *api, _ *Client, o *Order) { o.Expiration = 599 * time.Second }, []string{"ask for 10 minutes or more"}, 0},
		{"life too long", func(_ *api, _ *Client, o *Order) { o.Expiration = math.MaxInt64 }, []string{"68 years"}, 0},
		{"life, says the server", func(a *api, _ *Client, _ *Order) {
			a.before = status(422, "Invalid", "spec.expirationSeconds: Invalid value: 700: may not")
		}, []string{"ask for 10 minutes or more"}, 422},
		{"signer name", func(_ *api, _ *Client, o *Order) { o.SignerName = "x" }, []string{"DOMAIN/NAME"}, 422},
		{"redirect", func(a *api, _ *Client, _ *Order) { a.before = text(302, "text/html", "<a>") },
			[]string{"found (HTTP 302)", "is this a Kubernetes API server"}, 302},
		{"no JSON", func(a *api, _ *Client, _ *Order) { a.before = text(200, "text/html", "<html>welcome") },
			[]string{"the answer makes no sense", "is this a Kubernetes API server"}, 0},
		{"another object", func(a *api, _ *Client, _ *Order) {
			a.before = text(201, "application/json", `{"kind":"Pod","metadata":{"name":"x"}}`)
		},
			[]string{"the answer makes no sense", `it is about "x"`}, 0},
		{"nasty words", func(a *api, _ *Client, _ *Order) {
			a.before = text(400, "text/plain", "a\x1b[31m\r\nb\u202e"+strings.Repeat("x", 1000))
		}, []string{"a [31m b" + strings.Repeat("x", 292) + "… (HTTP 400)"}, 400},
		{"endless body", func(a *api, _ *Client, _ *Order) {
			a.before = func(_ string, w http.ResponseWriter, _ *http.Request) bool {
				flood(w)
				return true
			}
		}, []string{"larger than 1 MiB"}, 0},
		{"endless error", func(a *api, _ *Client, _ *Order) {
			a.before = func(_ string, w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(400)
				flood(w)
				return true
			}
		}, []string{"bad request (HTTP 400)"}, 400},
		{"a long list", func(a *api, _ *Client, _ *Order) {
			a.before = text(200, "application/json", `{"status":{"conditions":[`+strings.Repeat("{},", 65)+"{}]}}")
		}, []string{"a list is longer than 64"}, 0},
		{"silence", func(a *api, _ *Client, _ *Order) {
			a.before = func(_ string, _ http.ResponseWriter, r *http.Request) bool {
				<-r.Context().Done()
				return true
			}
		}, []string{"no answer within 30s"}, 0},
		{"a trickle", func(a *api, _ *Client, _ *Order) {
			a.before = func(_ string, w http.ResponseWriter, r *http.Request) bool {
				for r.Context().Err() == nil {
					_, _ = io.WriteString(w, " ")
					_ = http.NewResponseController(w).Flush()
					_ = pause(r.Context(), time.Second)
				}
				return true
			}
		}, []string{"no answer within 30s"}, 0},
		{"away", func(_ *api, c *Client, _ *Order) { c.Transport = gone{} }, []string{"cluster.test:6443: creating certificate signing request execproxy-", "connection refused"}, 0},
		{"no request", func(_ *api, _ *Client, o *Order) { o.CSR = []byte("x") }, []string{"is not PEM of the type CERTIFICATE REQUEST"}, 0},
		{"broken request", func(_ *api, _ *Client, o *Order) {
			o.CSR = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
		}, []string{"certificate request:"}, 0},
		{"a name with a way", func(_ *api, _ *Client, o *Order) { o.Name = ".." }, []string{"no name of an object"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI(t)
				c, _ := newClient(t, a)
				subjectKey = newKey(t)
				o := newOrder(t, subjectKey)
				tc.change(a, c, &o)
				began := time.Now()
				_, err := c.Submit(t.Context(), o)
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range tc.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q is not in: %v", want, err)
					}
				}
				if strings.ContainsAny(err.Error(), "\n\r\x1b\u202e") || len(err.Error()) > 1500 {
					t.Errorf("not one line: %q", err.Error())
				}
				var refusal *APIError
				if errors.As(err, &refusal) != (tc.code != 0) || refusal != nil && refusal.Status != tc.code {
					t.Errorf("%#v", err)
				}
				if took := time.Since(began); took > 31*time.Second {
					t.Errorf("it took %v", took)
				}
				if tc.code != 0 && len(a.requests) > 2 {
					t.Errorf("asked again: %q", a.requests)
				}
			})
		})
	}
}

type gone struct{}

func (gone) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("dial tcp: connection refused")
}

func flood(w io.Writer) {
	for {
		if _, err := io.WriteString(w, strings.Repeat(" ", 4096)); err != nil {
			return
		}
	}
}

// TestPatience: a server that asks for time gets it, but not all of it.
func TestPatience(t *testing.T) {
	for _, tc := range []struct {
		name, retryAfter string
		code, failures   int
		ok               bool
		least, most      time.Duration
	}{
		{"seconds", "7", 429, 2, true, 14 * time.Second, 18 * time.Second},
		{"date", "date", 503, 1, true, 8 * time.Second, 12 * time.Second},
		{"for ever", "100000000", 429, 1, true, time.Minute, 61 * time.Second},
		{"nothing said", "", 500, 3, true, time.Second, 5 * time.Second},
		{"nonsense said", "-5", 502, 3, true, time.Second, 5 * time.Second},
		{"never well", "", 503, 100, false, 2 * time.Second, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI(t)
				c, _ := newClient(t, a)
				left := tc.failures
				a.before = func(_ string, w http.ResponseWriter, _ *http.Request) bool {
					if left--; left < 0 {
						return false
					}
					after := tc.retryAfter
					if after == "date" {
						after = time.Now().Add(10 * time.Second).UTC().Format(http.TimeFormat)
					}
					w.Header().Set("Retry-After", after)
					fail(w, tc.code, "", "patience", "")
					return true
				}
				began := time.Now()
				_, err := c.Submit(t.Context(), newOrder(t, newKey(t)))
				if took := time.Since(began); (err == nil) != tc.ok || took < tc.least || took > tc.most {
					t.Errorf("%v after %v", err, took)
				}
				if !tc.ok && (len(a.requests) != tries || !strings.Contains(err.Error(), "try again later")) {
					t.Errorf("%d requests: %v", len(a.requests), err)
				}
			})
		})
	}
}
