// Package keyhome knows every home that a private key may have: a PEM file, a
// TPM, a PKCS#11 token. It opens keys there, makes them, and puts their
// certificates where they are found again.
package keyhome

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/signer"
)

// Options are what homes need besides the configuration.
type Options struct {
	Module  []string // command that runs a PKCS#11 library in a process of its own
	Program string   // what is executed there, where it is not what the command names
	Environ []string // of that process
	State   string   // directory where refused PINs are remembered
	Getenv  func(string) string

	// Ask says that somebody sits at the terminal who can be asked for a PIN.
	Ask bool
	// Detached says that this is not the process that the user started: it has no
	// terminal, none of its descriptors, and runs no askpass program.
	Detached bool
	// PIN is what another process of ours was given or asked for; nil: none.
	PIN []byte

	// Kept, where it is not nil, keeps what was asked for.
	Kept *Kept

	Logger *slog.Logger
}

// privateKey is a key in its home.
type privateKey interface {
	signer.Key
	SupportedSignatureAlgorithms() []tls.SignatureScheme
}

// Stats are of the key's home.
type Stats struct {
	Queued   int    // signatures that wait for the home
	Reopened uint64 // times that the home was lost and found again
}

// A handle is an open key, which Keys with other chains may share.
type handle struct {
	privateKey
	closed atomic.Bool
}

func newHandle(k privateKey) *handle { return &handle{privateKey: k} }

func (h *handle) Close() error {
	h.closed.Store(true)
	return h.privateKey.Close()
}

// A Key is a private key in its home, with the chain that was issued for it.
// Keys made of one another by With share the home's handle; closing one closes
// all.
type Key struct {
	private  *handle
	ref      config.KeyRef
	cert     string // file of the chain; "" for the token
	chain    []*x509.Certificate
	warnings []string
}

var _ signer.Key = (*Key)(nil)

// Public returns the public key.
func (k *Key) Public() crypto.PublicKey { return k.private.Public() }

// Sign signs a digest; see [crypto.Signer].
func (k *Key) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return k.private.Sign(rand, digest, opts)
}

// CertificateChain returns the chain, DER, leaf first; empty before it is issued.
func (k *Key) CertificateChain() [][]byte {
	der := make([][]byte, 0, len(k.chain))
	for _, c := range k.chain {
		der = append(der, c.Raw)
	}
	return der
}

// Leaf is the key's own certificate, nil before it is issued.
func (k *Key) Leaf() *x509.Certificate {
	if len(k.chain) == 0 {
		return nil
	}
	return k.chain[0]
}

// Close lets the home go.
func (k *Key) Close() error { return k.private.Close() }

// Schemes are the TLS signatures that the home can make.
func (k *Key) Schemes() []tls.SignatureScheme { return k.private.SupportedSignatureAlgorithms() }

// SupportedSignatureAlgorithms is Schemes, by the name that crypto/tls has for it.
func (k *Key) SupportedSignatureAlgorithms() []tls.SignatureScheme { return k.Schemes() }

// TLSCertificate returns key and chain for crypto/tls, which signs with sign.
func (k *Key) TLSCertificate(sign crypto.Signer) *tls.Certificate {
	return &tls.Certificate{
		Certificate: k.CertificateChain(), PrivateKey: sign, Leaf: k.Leaf(),
		SupportedSignatureAlgorithms: k.Schemes(),
	}
}

// Warnings returns what works and still should not be so, one line each.
func (k *Key) Warnings() []string { return append([]string(nil), k.warnings...) }

// Stats tells of the home; of files there is nothing to tell.
func (k *Key) Stats() Stats {
	if h, ok := k.private.privateKey.(interface{ homeStats() Stats }); ok {
		return h.homeStats()
	}
	return Stats{}
}

// Home is where the key lives: file, tpm or pkcs11.
func (k *Key) Home() string { return k.ref.Home }

// Location names the key in its home, without anything secret.
func (k *Key) Location() string {
	switch l, ok := k.private.privateKey.(interface{ Location() string }); {
	case k.ref.Path != "" && k.ref.Home == config.HomeTPM: // a new key was made elsewhere
		return config.HomeTPM + ":" + k.ref.Path
	case ok:
		return l.Location()
	}
	return k.ref.Path
}

// CertificateLocation is where the chain is kept: a file, or the token.
func (k *Key) CertificateLocation() string {
	if k.cert == "" {
		return "the token"
	}
	return k.cert
}

// Kind is the key's algorithm and size.
func (k *Key) Kind() string { return signer.Kind(k.Public()) }

// Fingerprint is the SHA-256 of the public key (SPKI), in hex.
func (k *Key) Fingerprint() string {
	spki, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		return "unknown" // no key of TLS
	}
	sum := sha256.Sum256(spki)
	return hex.EncodeToString(sum[:])
}

// String tells the kind of key and whose it is.
func (k *Key) String() string {
	if leaf := k.Leaf(); leaf != nil {
		return k.Kind() + " key of " + leaf.Subject.String()
	}
	return k.Kind() + " key without certificate"
}

// Shares reports that both are the same handle of the home.
func (k *Key) Shares(other *Key) bool { return k.private == other.private }

// Format writes String whatever the verb.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }
