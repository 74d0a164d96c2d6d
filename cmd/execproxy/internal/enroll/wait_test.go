package enroll

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A waiting waits in a goroutine of its own and keeps what it was told.
type waiting struct {
	t      *testing.T
	a      *api
	c      *Client
	n      *network
	s      *Submitted
	cancel context.CancelFunc

	mu    sync.Mutex
	told  []Progress
	done  chan struct{}
	chain []byte
	err   error
}

// begin submits a request and waits for it. Must run in a bubble.
func begin(t *testing.T, setup func(a *api)) *waiting {
	a := newAPI(t)
	w := &waiting{t: t, a: a, done: make(chan struct{})}
	w.c, w.n = newClient(t, a)
	s, err := w.c.Submit(t.Context(), newOrder(t, newKey(t)))
	must(t, err)
	w.s = s
	a.set(func() { a.requests = nil })
	if setup != nil {
		setup(a)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	go func() {
		defer close(w.done)
		w.chain, w.err = w.c.Wait(ctx, s, func(p Progress) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, p)
		})
	}()
	t.Cleanup(func() { cancel(); <-w.done })
	synctest.Wait()
	return w
}

// states are the states that were told, each once.
func (w *waiting) states() (states []ProgressState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.told {
		states = append(states, p.State)
	}
	return slices.Compact(states)
}

func (w *waiting) latest() Progress {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.told) == 0 {
		return Progress{}
	}
	return w.told[len(w.told)-1]
}

// issued fails unless the wait ends with a certificate within d.
func (w *waiting) issued(d time.Duration) {
	w.t.Helper()
	began := time.Now()
	<-w.done
	if took := time.Since(began); w.err != nil || took > d {
		w.t.Fatalf("%v after %v", w.err, took)
	}
	chain, err := parseChain("", w.chain)
	must(w.t, err)
	must(w.t, check("", chain, w.s.public, time.Now()))
	if got := w.states(); got[len(got)-1] != Issued {
		w.t.Errorf("told %q", got)
	}
}

func (w *waiting) still() {
	w.t.Helper()
	synctest.Wait()
	select {
	case <-w.done:
		w.t.Fatalf("it ended: %v", w.err)
	default:
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, nil)
		if got := w.states(); !slices.Equal(got, []ProgressState{Pending}) {
			t.Errorf("told %q", got)
		}
		if s := w.latest().String(); !strings.HasSuffix(s, "pending approval: an administrator runs: kubectl certificate approve "+w.s.Name) {
			t.Error(s)
		}
		time.Sleep(3 * time.Hour) // many watches come to their end meanwhile
		w.still()
		if lists, watches := w.a.count("LIST"), w.a.count("WATCH"); lists != watches || watches > 50 || watches < 20 || w.a.count("GET") != 0 {
			t.Errorf("%d lists, %d watches", lists, watches)
		}
		w.a.approve(w.s.Name)
		synctest.Wait()
		if got := w.latest(); got.State != Approved || got.Overdue {
			t.Errorf("told %v", got)
		}
		time.Sleep(10 * time.Second)
		w.a.sign(w.s.Name)
		w.issued(0) // the watch tells at once
		if got := w.states(); !slices.Equal(got, []ProgressState{Pending, Approved, Issued}) || len(w.told) != 3 {
			t.Errorf("told %q", w.told)
		}
	})
}

// TestNobodySigns: the user learns that approval alone does not help.
func TestNobodySigns(t *testing.T) {
	for _, polls := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := begin(t, func(a *api) { a.forbidden["watch"] = polls })
			time.Sleep(time.Hour)
			w.a.approve(w.s.Name)
			time.Sleep(signPatience + 20*time.Second)
			w.still()
			got := w.latest()
			if !got.Overdue || !strings.HasSuffix(got.String(), "nobody has signed it for 30s: no controller of this cluster seems to sign for kubernetes.io/kube-apiserver-client") {
				t.Errorf("polls %v: told %v", polls, got)
			}
			w.a.sign(w.s.Name)
			w.issued(longestPoll * 2)
		})
	}
}

func TestOutcomes(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(w *waiting)
		as   any
		want string
	}{
		{"denied", func(w *waiting) { w.a.deny(w.s.Name, "Unknown\nUser", "call \x1b[1mme.") }, new(*DeniedError),
			"was denied: Unknown User: call [1mme: ask the cluster's administrator, and request again"},
		{"denied without a word", func(w *waiting) { w.a.deny(w.s.Name, "", "") }, new(*DeniedError), "was denied: ask"},
		{"failed", func(w *waiting) { w.a.approve(w.s.Name); w.a.fails(w.s.Name, "SignerValidationFailure", "no") }, new(*FailedError),
			"failed: signer kubernetes.io/kube-apiserver-client refuses it: SignerValidationFailure: no"},
		{"deleted", func(w *waiting) { w.a.delete(w.s.Name) }, new(*DeletedError), "was deleted (pending requests are removed after 24 h): request again"},
		{"another of the same name", func(w *waiting) {
			w.a.set(func() {
				o := *w.a.objects[w.s.Name]
				o.Metadata.UID = "other"
				w.a.objects[w.s.Name] = &o
				w.a.changed("ADDED", &o)
			})
		}, new(*DeletedError), "was deleted"},
		{"no right any more", func(w *waiting) {
			w.a.set(func() { w.a.forbidden["list"], w.a.forbidden["get"], w.a.forbidden["watch"] = true, true, true })
		}, new(*APIError), "cannot list resource"},
		{"credentials ended", func(w *waiting) {
			w.a.set(func() {
				w.a.before = func(_ string, rw http.ResponseWriter, _ *http.Request) bool {
					fail(rw, 401, "Unauthorized", "Unauthorized", "")
					return true
				}
			})
		}, new(*APIError), "use credentials that this API server accepts"},
		{"API gone", func(w *waiting) { w.a.set(func() { w.a.prefix = "/elsewhere" }) }, new(*APIError), "certificates.k8s.io/v1"},
		{"given up", func(w *waiting) { w.cancel() }, &context.Canceled, "waiting for certificate signing request"},
	} {
		for _, polls := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, polls %v", tc.name, polls), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := begin(t, func(a *api) { a.forbidden["watch"] = polls })
					time.Sleep(time.Second)
					tc.do(w)
					<-w.done
					ok := false
					switch as := tc.as.(type) {
					case *error:
						ok = errors.Is(w.err, *as)
					default:
						ok = errors.As(w.err, as)
					}
					if !ok || !strings.Contains(w.err.Error(), tc.want) || strings.ContainsAny(w.err.Error(), "\n\x1b") || w.chain != nil {
						t.Errorf("%T %v", w.err, w.err)
					}
				})
			})
		}
	}
}

// TestBadCertificates: what the signer gives is looked at before anything is done with it.
func TestBadCertificates(t *testing.T) {
	issue := func(change func(a *api, c *x509.Certificate)) func(a *api) []byte {
		return func(a *api) []byte {
			a.issue = func(_ *x509.CertificateRequest, c *x509.Certificate) []byte { change(a, c); return nil }
			return nil
		}
	}
	text := func(s string) func(a *api) []byte { return func(*api) []byte { return []byte(s) } }
	block := func(kind, s string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(s)}))
	}
	for _, tc := range []struct {
		name string
		make func(a *api) []byte
		want string
	}{
		{"another key", issue(func(a *api, c *x509.Certificate) { c.PublicKey = newKey(a.t).Public() }), "another public key"},
		{"ended", issue(func(_ *api, c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), "it ended at"},
		{"not yet", issue(func(_ *api, c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), "valid only from"},
		{"for servers", issue(func(_ *api, c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "client authentication"},
		{"garbage", text("certificate"), "no PEM of the type CERTIFICATE"},
		{"garbage in PEM", text(block("CERTIFICATE", "x")), "x509: "},
		{"a private key", text(block("EC PRIVATE KEY", "x")), `"EC PRIVATE KEY"`},
		{"a long chain", func(a *api) []byte { return []byte(strings.Repeat(string(otherCertificate(a)), 17)) }, "chain of more than 16"},
		{"wrong order", func(a *api) []byte {
			o := a.objects[a.requests[0]]
			csr, err := o.parse()
			must(a.t, err)
			return slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.caCert.Raw}), a.certificate(csr, time.Hour))
		}, "not the first of the chain"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t, nil)
				w.a.set(func() {
					w.a.requests = []string{w.s.Name}
					if bad := tc.make(w.a); bad != nil {
						w.a.issue = func(*x509.CertificateRequest, *x509.Certificate) []byte { return bad }
					}
				})
				w.a.approve(w.s.Name)
				w.a.sign(w.s.Name)
				<-w.done
				var bad *CertificateError
				if !errors.As(w.err, &bad) || !strings.Contains(bad.Error(), tc.want) || strings.Contains(bad.Error(), "\n") || w.chain != nil {
					t.Errorf("%T %v", w.err, w.err)
				}
			})
		})
	}
}

// TestGoodCertificates: chains and unusual ones are fine; what is around them is left out.
func TestGoodCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, nil)
		w.a.issue = func(_ *x509.CertificateRequest, c *x509.Certificate) []byte {
			c.ExtKeyUsage = nil
			der, err := x509.CreateCertificate(rand.Reader, c, w.a.caCert, c.PublicKey, w.a.ca)
			must(t, err)
			return slices.Concat([]byte("leaf:\n"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
				[]byte("issuer:\n"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.a.caCert.Raw}), []byte("the end"))
		}
		w.a.approve(w.s.Name)
		w.a.sign(w.s.Name)
		w.issued(0)
		if chain, _ := parseChain("", w.chain); len(chain) != 2 || strings.Contains(string(w.chain), "issuer") || strings.Contains(string(w.chain), "end\n") {
			t.Errorf("%s", w.chain)
		}
	})
}

// TestChecks are those that the API's own rules keep from happening.
func TestChecks(t *testing.T) {
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	c, err := x509.ParseCertificate(der)
	must(t, err)
	if err := check("", []*x509.Certificate{c}, key.Public(), time.Now()); err != nil {
		t.Error(err)
	}
	if err := check("", []*x509.Certificate{c}, nil, time.Now()); err == nil {
		t.Error("a certificate belongs to no key")
	}
	o := &object{Status: status{Conditions: few[condition]{{Type: conditionDenied, Status: "False"}, {Type: conditionApproved, Status: ""}}}}
	if o.condition(conditionDenied) != nil || o.condition(conditionApproved) == nil {
		t.Error("conditions")
	}
	for name, want := range map[string]string{"a-1": "a-1", "a b": "'a b'", "-f": "'-f'", "a'b": `'a'\''b'`, "": "''"} {
		if got := ApproveCommand(name); got != "kubectl certificate approve "+want {
			t.Error(got)
		}
	}
}
