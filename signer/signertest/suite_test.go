package signertest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestGoodHome: the suite passes a good home, with certificates and without.
func TestGoodHome(t *testing.T) {
	for _, kind := range []string{"P-256", "P-384", "RSA"} {
		for _, chained := range []bool{false, true} {
			if kind == "P-384" && chained {
				continue // slow, and nothing new
			}
			h := newHome(kind)
			if chained {
				der, err := issue(h.open())
				if err != nil {
					t.Fatal(err)
				}
				h.chainOf = func(*soft) [][]byte { return [][]byte{der} }
			}
			Run(t, Home{
				Name:    fmt.Sprintf("%s, certificate %t", kind, chained),
				Open:    func(*testing.T) Key { return h.open() },
				Schemes: h.schemes,
				Lose:    func(*testing.T) { h.lost.Store(true) },
				Return:  func(*testing.T) { h.lost.Store(false) },
			})
		}
	}
}

// TestSuiteCanFail: each way to be broken is found by the rule that is there for it.
func TestSuiteCanFail(t *testing.T) {
	for _, tc := range []struct {
		name  string
		kind  string
		rule  string // that must find it
		text  string // and say so
		wreck func(h *home, w *world)
	}{
		{"another public key each time", "P-256", "public key", "another key the second time", func(h *home, _ *world) {
			h.publicOf = func(*soft) crypto.PublicKey { return newEC().Public() }
		}},
		{"a public key that TLS does not know", "P-256", "public key", "crypto/tls knows", func(h *home, _ *world) {
			h.publicOf = func(*soft) crypto.PublicKey { return "key" }
		}},
		{"the chain of another key", "P-256", "chain", "not for the public key", func(h *home, _ *world) {
			der := foreign(t)
			h.chainOf = func(*soft) [][]byte { return [][]byte{der} }
		}},
		{"a chain of garbage", "P-256", "chain", "certificate 1 of the chain", func(h *home, _ *world) {
			h.chainOf = func(*soft) [][]byte { return [][]byte{{1}} }
		}},
		{"a chain that callers can change", "P-256", "chain", "can change the chain", func(h *home, _ *world) {
			der, err := issue(h.open())
			if err != nil {
				t.Fatal(err)
			}
			shared := [][]byte{der}
			h.chainOf = func(*soft) [][]byte { return shared }
		}},
		{"a verb that shows the inside", "P-256", "printing", "%x prints", func(h *home, _ *world) {
			h.format = func(_ *soft, verb rune) string {
				if verb == 'x' {
					return "d=1234"
				}
				return "a key"
			}
		}},
		{"prints nothing", "P-256", "printing", "one line", func(h *home, _ *world) {
			h.format = func(*soft, rune) string { return "" }
		}},
		{"garbage for a signature", "P-256", "schemes", "does not verify", func(h *home, _ *world) {
			h.sign = func(*soft, []byte, crypto.SignerOpts) ([]byte, error) { return make([]byte, 70), nil }
		}},
		{"garbage for a signature, in TLS", "P-256", "TLS", "TLS 1.3", func(h *home, _ *world) {
			h.sign = func(*soft, []byte, crypto.SignerOpts) ([]byte, error) { return make([]byte, 70), nil }
		}},
		{"the signature of another key", "RSA", "schemes", "does not verify", func(h *home, _ *world) {
			other, err := rsa.GenerateKey(rand.Reader, 2048)
			if err != nil {
				t.Fatal(err)
			}
			h.sign = func(_ *soft, d []byte, o crypto.SignerOpts) ([]byte, error) { return other.Sign(rand.Reader, d, o) }
		}},
		{"PSS with the longest salt", "RSA", "schemes", "PSSWithSHA256: the signature", longSalt},
		{"PSS with the longest salt, in TLS", "RSA", "TLS", "TLS 1.3 with [PSSWithSHA256]", longSalt},
		{"PKCS #1 where PSS was asked for", "RSA", "schemes", "PSSWithSHA256: the signature", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) { return k.properly(d, o.HashFunc()) }
		}},
		{"claims a scheme that it cannot do", "RSA", "schemes", "PKCS1WithSHA512: Sign: not supported", claims512},
		{"claims a scheme that it cannot do, in TLS", "RSA", "TLS", "TLS 1.2 with [PKCS1WithSHA512]", claims512},
		{"claims a scheme of another curve", "P-256", "schemes", "claimed by a key on P-256", func(h *home, _ *world) {
			h.schemes = append(h.schemes, tls.ECDSAWithP384AndSHA384)
		}},
		{"claims a scheme of another kind", "P-256", "schemes", "claimed by a key for ECDSA", func(h *home, _ *world) {
			h.schemes = append(h.schemes, tls.PSSWithSHA256)
		}},
		{"claims SHA-1", "P-256", "schemes", "not a scheme for client certificates", func(h *home, _ *world) {
			h.schemes = append(h.schemes, tls.ECDSAWithSHA1)
		}},
		{"claims nothing", "P-256", "schemes", "nothing can be signed", func(h *home, _ *world) { h.schemes = nil }},
		{"claims twice", "P-256", "schemes", "twice", func(h *home, _ *world) { h.schemes = append(h.schemes, h.schemes...) }},
		{"claims less than promised", "RSA", "schemes", "does not name PKCS1WithSHA384", func(_ *home, w *world) {
			w.schemes = []tls.SignatureScheme{tls.PSSWithSHA256, tls.PKCS1WithSHA384}
		}},
		{"schemes that callers can change", "RSA", "schemes", "can change Supported", func(h *home, _ *world) {
			h.schemesOf = func(k *soft) []tls.SignatureScheme { return k.home.schemes }
		}},
		{"signs what is no digest", "P-256", "digests", "one byte short: it signed", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) { return k.private.Sign(rand.Reader, d, o) }
		}},
		{"panics at nonsense", "P-256", "digests", "it panics", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				whole := [32]byte(d) // panics where it is shorter
				return k.properly(whole[:], o)
			}
		}},
		{"breaks at nonsense", "P-256", "digests", "Sign: no session", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if k.calls.Load() > 1 {
					return nil, errors.New("no session")
				}
				return k.properly(d, o)
			}
		}},
		{"not safe for parallel use", "P-256", "parallel", "does not verify", func(h *home, _ *world) {
			// The digest lies where the next caller puts its own before it is signed.
			var digest atomic.Pointer[[]byte]
			var inside atomic.Int64
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				digest.Store(&d)
				inside.Add(1)
				for deadline := time.Now().Add(100 * time.Millisecond); inside.Load() < 2 && time.Now().Before(deadline); {
					time.Sleep(time.Millisecond)
				}
				return k.properly(*digest.Load(), o)
			}
		}},
		{"deadlocks in parallel use", "P-256", "parallel", "not done in time", func(h *home, w *world) {
			var busy atomic.Bool
			w.patience = short
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if busy.Swap(true) {
					<-hang
				}
				return k.properly(d, o)
			}
		}},
		{"ignores Close", "P-256", "close", "after the first Close: it still signs", ignoresClose},
		{"ignores Close under load", "P-256", "close under load", "it still signs", ignoresClose},
		{"panics after Close", "P-256", "close", "it panics", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if k.closed.Load() {
					panic("nil session")
				}
				return k.properly(d, o)
			}
		}},
		{"hangs after Close", "P-256", "close", "not done in time", func(h *home, w *world) {
			w.patience = short
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if k.closed.Load() {
					<-hang
				}
				return k.properly(d, o)
			}
		}},
		{"cannot be closed twice", "P-256", "close", "the second Close: closed already", func(h *home, _ *world) {
			h.close = func(k *soft) error {
				if k.closed.Swap(true) {
					return errors.New("closed already")
				}
				return nil
			}
		}},
		{"an error of two lines", "P-256", "close", "one line", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if k.closed.Load() {
					return nil, errors.New("closed\ngoroutine 1")
				}
				return k.properly(d, o)
			}
		}},
		{"Close does not wait for its turn", "P-256", "close under load", "does not verify", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				sig, err := k.raw(d, o)
				if k.closed.Load() {
					return make([]byte, 8), nil
				}
				return sig, err
			}
		}},
		{"signers hang when closed under load", "P-256", "close under load", "hang", func(h *home, w *world) {
			w.patience = short
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if k.closed.Load() {
					<-hang
				}
				return k.properly(d, o)
			}
		}},
		{"fails under load", "P-256", "close under load", "pool is empty", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if k.calls.Load()%5 == 0 {
					return nil, errors.New("pool is empty")
				}
				return k.properly(d, o)
			}
		}},
		{"another key when opened again", "P-256", "reopen", "another public key", func(h *home, _ *world) {
			h.next = func(*home) crypto.Signer { return newEC() }
		}},
		{"does not sign when opened again", "P-256", "reopen", "opened again", func(h *home, _ *world) {
			var opened atomic.Int64
			h.next = func(h *home) crypto.Signer { opened.Add(1); return h.private }
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if opened.Load() > 1 {
					return nil, errors.New("session limit")
				}
				return k.properly(d, o)
			}
		}},
		{"does not notice the loss", "P-256", "loss and return", "still signs", func(h *home, w *world) {
			w.patience = short
			h.loseFor = func(*home) {}
		}},
		{"garbage while lost", "P-256", "loss and return", "does not verify", func(h *home, _ *world) {
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if sig, err := k.properly(d, o); !errors.Is(err, errGone) {
					return sig, err
				}
				return make([]byte, 8), nil
			}
		}},
		{"hangs while lost", "P-256", "loss and return", "not done in time", func(h *home, w *world) {
			w.patience = short
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if k.home.lost.Load() {
					<-hang
				}
				return k.properly(d, o)
			}
		}},
		{"does not come back", "P-256", "loss and return", "does not sign again", func(h *home, w *world) {
			w.patience = short
			h.restoreFor = func(*home) {}
		}},
		{"comes back once", "P-256", "loss and return", "does not sign again", func(h *home, w *world) {
			w.patience = short
			var returns atomic.Int64
			h.restoreFor = func(h *home) {
				if returns.Add(1) == 1 {
					h.lost.Store(false)
				}
			}
		}},
		{"comes back as another key", "P-256", "loss and return", "does not verify", func(h *home, w *world) {
			w.patience = short
			var again atomic.Bool
			other := newEC()
			h.restoreFor = func(h *home) { again.Store(true); h.lost.Store(false) }
			h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
				if sig, err := k.properly(d, o); err != nil || !again.Load() {
					return sig, err
				}
				return other.Sign(rand.Reader, d, o)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHome(tc.kind)
			w := h.world()
			tc.wreck(h, &w)
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == tc.rule })
			if i < 0 {
				t.Fatalf("no rule %q", tc.rule)
			}
			if err := rules[i].check(w); err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("the rule of %s: got %v, want %q", tc.rule, err, tc.text)
			}
		})
	}
	close(hang) // let go of what hangs
}
