package signertest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// keys are made once: RSA takes its time.
var keys = sync.OnceValue(func() map[string]crypto.Signer {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return map[string]crypto.Signer{"P-256": newEC(), "P-384": ec(elliptic.P384()), "RSA": rsaKey}
})

func newEC() crypto.Signer { return ec(elliptic.P256()) }

func ec(c elliptic.Curve) crypto.Signer {
	k, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		panic(err)
	}
	return k
}

// home is a good home in memory, whose parts the tests replace with broken ones.
type home struct {
	private crypto.Signer
	schemes []tls.SignatureScheme
	lost    atomic.Bool

	next       func(h *home) crypto.Signer // the private key of the next opening
	sign       func(k *soft, digest []byte, opts crypto.SignerOpts) ([]byte, error)
	publicOf   func(k *soft) crypto.PublicKey
	chainOf    func(k *soft) [][]byte
	close      func(k *soft) error
	format     func(k *soft, verb rune) string
	schemesOf  func(k *soft) []tls.SignatureScheme
	loseFor    func(h *home) // what Lose does
	restoreFor func(h *home)
}

// soft is a key of it.
type soft struct {
	home    *home
	private crypto.Signer
	chain   [][]byte
	closed  atomic.Bool
	calls   atomic.Int64
}

var errClosed, errGone = errors.New("key is closed"), errors.New("token is gone: put it back")

func newHome(kind string) *home {
	h := &home{private: keys()[kind]}
	switch kind {
	case "RSA":
		h.schemes = []tls.SignatureScheme{tls.PSSWithSHA256, tls.PKCS1WithSHA256}
	case "P-384":
		h.schemes = []tls.SignatureScheme{tls.ECDSAWithP384AndSHA384}
	default:
		h.schemes = []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}
	}
	h.next = func(h *home) crypto.Signer { return h.private }
	h.sign = (*soft).properly
	h.publicOf = func(k *soft) crypto.PublicKey { return k.private.Public() }
	h.chainOf = func(k *soft) [][]byte { return slices.Clone(k.chain) }
	h.close = func(k *soft) error { k.closed.Store(true); return nil }
	h.format = func(*soft, rune) string { return "a key in memory" }
	h.schemesOf = func(k *soft) []tls.SignatureScheme { return slices.Clone(k.home.schemes) }
	h.loseFor = func(h *home) { h.lost.Store(true) }
	h.restoreFor = func(h *home) { h.lost.Store(false) }
	return h
}

func (h *home) open() Key {
	return &soft{home: h, private: h.next(h)}
}

func (h *home) world() world {
	return world{open: h.open, reopen: h.open, schemes: h.schemes, patience: 5 * time.Second,
		lose: func() { h.loseFor(h) }, restore: func() { h.restoreFor(h) }}
}

// properly is how a good key signs.
func (k *soft) properly(digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	switch {
	case k.closed.Load():
		return nil, errClosed
	case k.home.lost.Load():
		return nil, errGone
	}
	return k.raw(digest, opts)
}

func (k *soft) raw(digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if len(digest) != opts.HashFunc().Size() {
		return nil, errors.New("no digest")
	}
	return k.private.Sign(rand.Reader, digest, opts)
}

func (k *soft) Public() crypto.PublicKey   { return k.home.publicOf(k) }
func (k *soft) CertificateChain() [][]byte { return k.home.chainOf(k) }
func (k *soft) Close() error               { return k.home.close(k) }
func (k *soft) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.calls.Add(1)
	return k.home.sign(k, digest, opts)
}
func (k *soft) SupportedSignatureAlgorithms() []tls.SignatureScheme { return k.home.schemesOf(k) }
func (k *soft) Format(f fmt.State, verb rune)                       { _, _ = io.WriteString(f, k.home.format(k, verb)) }

// short is the patience where it is meant to end.
const short = 1500 * time.Millisecond

// hang ends with the test.
var hang = make(chan struct{})

func ignoresClose(h *home, _ *world) { h.close = func(*soft) error { return nil } }

// longSalt is what some TPMs do.
func longSalt(h *home, _ *world) {
	h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
		if _, ok := o.(*rsa.PSSOptions); ok {
			o = &rsa.PSSOptions{SaltLength: k.private.Public().(*rsa.PublicKey).Size() - o.HashFunc().Size() - 2, Hash: o.HashFunc()}
		}
		return k.properly(d, o)
	}
}

func claims512(h *home, _ *world) {
	h.schemes = append(h.schemes, tls.PKCS1WithSHA512)
	h.sign = func(k *soft, d []byte, o crypto.SignerOpts) ([]byte, error) {
		if o.HashFunc() == crypto.SHA512 {
			return nil, errors.New("not supported")
		}
		return k.properly(d, o)
	}
}

// foreign is a certificate of nobody here.
func foreign(t *testing.T) []byte {
	t.Helper()
	h := newHome("P-256")
	h.private = newEC()
	der, err := issue(h.open())
	if err != nil {
		t.Fatal(err)
	}
	return der
}
