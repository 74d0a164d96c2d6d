package enroll

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSubmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		c, _ := newClient(t, a)
		rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
		must(t, err)
		o := newOrder(t, rsaKey)
		o.Expiration = time.Hour
		s, err := c.Submit(t.Context(), o)
		must(t, err)
		if !regexp.MustCompile(`^execproxy-[0-9a-f]{20}$`).MatchString(s.Name) || s.Adopted || s.SignerName != SignerClient || s.Created.IsZero() {
			t.Errorf("%+v", s)
		}
		if e := a.object(s.Name).Spec.ExpirationSeconds; e == nil || *e != "3600" {
			t.Errorf("expirationSeconds: %v", e)
		}
		// No expiration, another salt, a node.
		csr, err := NewRequest(newKey(t), pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}})
		must(t, err)
		node, err := c.Submit(t.Context(), Order{CSR: csr, Salt: "2", Name: "my-name"})
		must(t, err)
		if got := a.object("my-name"); got.Spec.ExpirationSeconds != nil || got.Spec.SignerName != SignerKubelet || node.SignerName != SignerKubelet {
			t.Errorf("%+v", got.Spec)
		}
	})
}

// TestAdopt: what an earlier process left is found again, and nothing else is taken for it.
func TestAdopt(t *testing.T) {
	for _, tc := range []struct {
		name   string
		spoil  func(a *api, o *Order, name string)
		adopts bool
	}{
		{"pending", func(*api, *Order, string) {}, true},
		{"approved", func(a *api, _ *Order, name string) { a.approve(name) }, true},
		{"issued", func(a *api, _ *Order, name string) { a.approve(name); a.sign(name) }, true},
		{"issued long ago", func(a *api, _ *Order, name string) {
			a.approve(name)
			a.sign(name)
			time.Sleep(31 * time.Minute)
		}, false},
		{"issued for another key", func(a *api, _ *Order, name string) {
			a.object(name)
			a.approve(name)
			a.set(func() { a.objects[name].Status.Certificate = otherCertificate(a) })
		}, false},
		{"denied", func(a *api, _ *Order, name string) { a.deny(name, "No", "no") }, false},
		{"failed", func(a *api, _ *Order, name string) { a.approve(name); a.fails(name, "No", "no") }, false},
		{"another signer", func(a *api, o *Order, name string) { o.SignerName = "example.com/other" }, false},
		{"another life", func(a *api, o *Order, name string) { o.Expiration = 2 * time.Hour }, false},
		{"no life", func(a *api, o *Order, name string) { o.Expiration = 0 }, false},
		{"somebody else's", func(a *api, o *Order, name string) {
			text := newOrder(a.t, newKey(a.t)).CSR
			a.set(func() { a.objects[name].Spec.Request = base64Of(text) })
		}, false},
		{"another subject", func(a *api, o *Order, name string) {
			text, err := NewRequest(subjectKey, pkix.Name{CommonName: "root"})
			must(a.t, err)
			a.set(func() { a.objects[name].Spec.Request = base64Of(text) })
		}, false},
		{"other usages", func(a *api, o *Order, name string) {
			a.set(func() { a.objects[name].Spec.Usages = []string{"server auth"} })
		}, false},
		{"nonsense", func(a *api, o *Order, name string) {
			a.set(func() { a.objects[name].Spec.Request = base64Of([]byte("x")) })
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI(t)
				c, _ := newClient(t, a)
				subjectKey = newKey(t)
				o := newOrder(t, subjectKey)
				o.Expiration = time.Hour
				first, err := c.Submit(t.Context(), o)
				must(t, err)
				tc.spoil(a, &o, first.Name)
				// The CSR is another one of the same key: ECDSA signs differently each time.
				o.CSR = newOrder(t, subjectKey).CSR
				again, err := c.Submit(t.Context(), o)
				must(t, err)
				if again.Adopted != tc.adopts || (again.Name == first.Name) != tc.adopts {
					t.Errorf("%+v, first was %s", again, first.Name)
				}
				if tc.adopts {
					if len(a.names()) != 1 || !again.Created.Equal(first.Created) {
						t.Errorf("requests %q, %v %v", a.names(), again.Created, first.Created)
					}
					return
				}
				// A third process finds the second request.
				third, err := c.Submit(t.Context(), o)
				must(t, err)
				if !third.Adopted || third.Name != again.Name {
					t.Errorf("third: %+v, second was %s", third, again.Name)
				}
				// Where the name was asked for, no other will do.
				o.Name = first.Name
				if _, err := c.Submit(t.Context(), o); err == nil || !strings.Contains(err.Error(), "kubectl delete certificatesigningrequest "+first.Name) {
					t.Errorf("named: %v", err)
				}
			})
		})
	}
}

var subjectKey crypto.Signer // of the test that runs

// TestWayBlocked: a server that has every name taken gets a bounded number of requests.
func TestWayBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		c, _ := newClient(t, a)
		o := newOrder(t, newKey(t))
		for range names {
			s, err := c.Submit(t.Context(), o)
			must(t, err)
			a.deny(s.Name, "", "")
		}
		if _, err := c.Submit(t.Context(), o); err == nil || !strings.Contains(err.Error(), "16 earlier certificate signing requests") {
			t.Errorf("%v", err)
		}
		// Always there, never found.
		a.set(func() {
			a.requests = nil
			a.before = func(verb string, w http.ResponseWriter, _ *http.Request) bool {
				fail(w, map[string]int{"create": 409, "get": 404}[verb], "X", "x", "")
				return true
			}
		})
		if _, err := c.Submit(t.Context(), o); err == nil || len(a.requests) > 2*tries {
			t.Errorf("%v after %d requests", err, len(a.requests))
		}
	})
}

// TestDenialStands: a process that was just started does not ask again what was denied a
// moment ago.
func TestDenialStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		c, _ := newClient(t, a)
		o := newOrder(t, newKey(t))
		o.stands = time.Minute
		s, err := c.Submit(t.Context(), o)
		must(t, err)
		a.deny(s.Name, "No", "not you")
		var denied *DeniedError
		if _, err := c.Submit(t.Context(), o); !errors.As(err, &denied) || denied.Reason != "No" || denied.Message != "not you" {
			t.Errorf("%v", err)
		}
		time.Sleep(2 * time.Minute)
		if again, err := c.Submit(t.Context(), o); err != nil || again.Adopted || again.Name == s.Name {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

// TestCreatedUnheard: the answer to a create gets lost; the second try finds its fruit.
func TestCreatedUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		c, _ := newClient(t, a)
		first := true
		a.before = func(verb string, w http.ResponseWriter, r *http.Request) bool {
			if verb != "create" || !first {
				return false
			}
			first = false
			body, _ := io.ReadAll(r.Body)
			a.create(httptest.NewRecorder(), r, body)
			fail(w, 504, "Timeout", "too slow", "")
			return true
		}
		s, err := c.Submit(t.Context(), newOrder(t, newKey(t)))
		if err != nil || !s.Adopted || len(a.names()) != 1 {
			t.Errorf("%+v, %v, %q", s, err, a.names())
		}
	})
}

func TestSubmitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		c, _ := newClient(t, a)
		a.before = func(_ string, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "60")
			fail(w, 429, "TooManyRequests", "slowly", "")
			return true
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := c.Submit(ctx, newOrder(t, newKey(t))); err == nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestOverTLS is the whole way over a real connection, to a server below a path.
func TestOverTLS(t *testing.T) {
	a := newAPI(t)
	a.prefix, a.approves, a.signs = "/k8s/clusters/c-1", true, true
	server := httptest.NewTLSServer(a)
	defer server.Close()
	u, err := url.Parse(server.URL + "/k8s/clusters/c-1/")
	must(t, err)
	c := &Client{Server: u, Transport: server.Client().Transport}
	key := newKey(t)
	s, err := c.Submit(t.Context(), newOrder(t, key))
	must(t, err)
	text, err := c.Wait(t.Context(), s, nil)
	must(t, err)
	chain, err := parseChain("", text)
	must(t, err)
	if !equalKeys(chain[0].PublicKey, key.Public()) || chain[0].Subject.CommonName != "jane" {
		t.Errorf("%v", chain[0].Subject)
	}
}
