// Package signertest is the conformance suite of key homes: what holds for every
// [signer.Key] that authenticates TLS clients, wherever its private key lives. It is for
// tests; a program that imports it gets the flags of package testing.
package signertest

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// A Key is what every home hands out.
type Key interface {
	signer.Key

	// SupportedSignatureAlgorithms are the TLS schemes that the key can sign with, for
	// [tls.Certificate]. It never claims one that it cannot do.
	SupportedSignatureAlgorithms() []tls.SignatureScheme
}

// A Home is where keys live. Its functions are called one after the other, on the goroutine of
// a test; they fail the test where they fail. No two keys of a home are open at once.
type Home struct {
	Name string

	// Open opens a key, which may be another one each time. The suite closes it.
	Open func(t *testing.T) Key

	// Reopen opens the key that Open opened last, and that was closed. nil where Open
	// opens one and the same each time.
	Reopen func(t *testing.T) Key

	// Lose takes the home away from an open key (the token is pulled out, the daemon in
	// between dies), and Return brings it back. Both nil where a home cannot be lost.
	Lose, Return func(t *testing.T)

	// Schemes are those that the key must name. It may name more.
	Schemes []tls.SignatureScheme

	// Patience is how long any one operation may take, and coming back after a loss.
	// Default 20 s.
	Patience time.Duration
}

// Run runs the suite, each rule as a subtest.
func Run(t *testing.T, h Home) {
	t.Helper()
	if h.Patience <= 0 {
		h.Patience = 20 * time.Second
	}
	if h.Reopen == nil {
		h.Reopen = h.Open
	}
	t.Run(h.Name, func(t *testing.T) {
		for _, r := range rules {
			t.Run(r.name, func(t *testing.T) {
				w := world{
					open:     func() Key { return h.Open(t) },
					reopen:   func() Key { return h.Reopen(t) },
					schemes:  h.Schemes,
					patience: h.Patience,
				}
				if h.Lose != nil && h.Return != nil {
					w.lose, w.restore = func() { h.Lose(t) }, func() { h.Return(t) }
				} else if r.loses {
					t.Skip("this home cannot be lost")
				}
				if err := r.check(w); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// world is a Home without its test, so that the suite can be tried on keys that must fail.
type world struct {
	open, reopen  func() Key
	lose, restore func()
	schemes       []tls.SignatureScheme
	patience      time.Duration
}

// A rule is one thing that holds. It returns what is wrong.
type rule struct {
	name  string
	loses bool // needs a home that can be lost
	check func(world) error
}

var rules = []rule{
	{"public key", false, publicKey},
	{"chain", false, chain},
	{"printing", false, printing},
	{"schemes", false, schemes},
	{"digests", false, digests},
	{"TLS", false, clientAuthentication},
	{"parallel", false, parallel},
	{"close", false, closing},
	{"close under load", false, closingUnderLoad},
	{"reopen", false, reopening},
	{"loss and return", true, lossAndReturn},
}

// with runs f on a key of its own, which it closes.
func (w world) with(f func(Key) error) error {
	k := w.open()
	err := f(k)
	if cerr := within(w.patience, k.Close); cerr != nil {
		err = errors.Join(err, fmt.Errorf("on Close: %w", cerr))
	}
	return err
}

// publicKey: it is of a kind that TLS knows, and stays the same.
func publicKey(w world) error {
	return w.with(func(k Key) error {
		public := k.Public()
		if _, err := kindOf(public); err != nil {
			return err
		}
		if _, err := x509.MarshalPKIXPublicKey(public); err != nil {
			return err
		}
		if !same(public, k.Public()) {
			return errors.New("its Public returned another key the second time")
		}
		return nil
	})
}

// chain: it is the key's, and a caller cannot change it. It may be empty.
func chain(w world) error {
	return w.with(func(k Key) error {
		c := k.CertificateChain()
		if len(c) == 0 {
			return nil
		}
		for i, der := range c {
			parsed, err := x509.ParseCertificate(der)
			if err != nil {
				return fmt.Errorf("certificate %d of the chain: %w", i+1, err)
			}
			if i == 0 && !same(parsed.PublicKey, k.Public()) {
				return errors.New("the first certificate of the chain is not for the public key")
			}
		}
		leaf := c[0]
		c[0] = nil
		if again := k.CertificateChain(); len(again) == 0 || !bytes.Equal(again[0], leaf) {
			return errors.New("a caller can change the chain")
		}
		return nil
	})
}

// printing: no verb shows the inside of the key, where its secrets are.
func printing(w world) error {
	return w.with(func(k Key) error {
		want := fmt.Sprintf("%v", k)
		if want == "" || strings.ContainsAny(want, "\r\n") {
			return fmt.Errorf("it prints as %q: want one line that says what it is", want)
		}
		for _, verb := range []string{"%s", "%+v", "%#v", "%x", "%d", "%q"} {
			if got := fmt.Sprintf(verb, k); got != want {
				return fmt.Errorf("%s prints %.200q: want %q, whatever the verb", verb, got, want)
			}
		}
		return nil
	})
}

// schemes: the key does what it names, and names what the home promises.
func schemes(w world) error {
	return w.with(func(k Key) error {
		named := k.SupportedSignatureAlgorithms()
		if len(named) == 0 {
			return errors.New("SupportedSignatureAlgorithms is empty: nothing can be signed")
		}
		for _, s := range w.schemes {
			if !slices.Contains(named, s) {
				return fmt.Errorf("SupportedSignatureAlgorithms %v does not name %v", named, s)
			}
		}
		var errs []error
		for i, s := range named {
			if slices.Contains(named[:i], s) {
				errs = append(errs, fmt.Errorf("SupportedSignatureAlgorithms names %v twice", s))
			}
			// More than once: some signatures of a broken key happen to verify.
			for n := range 4 {
				if err := w.signs(k, s, fmt.Sprintf("message %d", n)); err != nil {
					errs = append(errs, err)
					break
				}
			}
		}
		first := named[0]
		named[0] = 0
		if again := k.SupportedSignatureAlgorithms(); len(again) == 0 || again[0] != first {
			errs = append(errs, errors.New("a caller can change SupportedSignatureAlgorithms"))
		}
		return errors.Join(errs...)
	})
}

// digests: what cannot be a digest of the hash is refused, and does no harm.
func digests(w world) error {
	return w.with(func(k Key) error {
		var errs []error
		for _, s := range k.SupportedSignatureAlgorithms() {
			d, ok := describe(s)
			if !ok || d.fits(k.Public()) != nil {
				continue // the rule of schemes tells
			}
			for _, nonsense := range d.nonsense() {
				err := within(w.patience, func() error {
					sig, err := sign(k, nonsense.digest, nonsense.opts)
					if panicked := (*panicError)(nil); errors.As(err, &panicked) {
						return err
					}
					if err == nil {
						return fmt.Errorf("it signed (%d bytes): want an error", len(sig))
					}
					return nil
				})
				if err != nil {
					errs = append(errs, fmt.Errorf("%v: %s: %w", s, nonsense.what, err))
				}
			}
			if err := w.signs(k, s, "after nonsense"); err != nil {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

// signs makes one signature in time and verifies it.
func (w world) signs(k Key, s tls.SignatureScheme, message string) error {
	return within(w.patience, func() error { return signAndVerify(k, k.Public(), s, message) })
}

func same(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && b != nil && k.Equal(b)
}
