package keyfile

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// Key is a private key from a file, and its certificate chain. It implements [signer.Key].
type Key struct {
	private  crypto.Signer
	chain    [][]byte
	leaf     *x509.Certificate
	warnings []string
	closed   atomic.Bool

	keyPath, certPath string            // "" for what was given to Parse
	print             [sha256.Size]byte // tells two pairs apart
}

var _ signer.Key = (*Key)(nil)

// Load reads a key and its chain. certPath may be "" or the same as keyPath: then the one
// file holds both. It fails with a *[Error].
func Load(keyPath, certPath string) (*Key, error) {
	return load(keyPath, certPath, time.Now())
}

// Parse is Load for what is in memory already. certPEM may be nil: then keyPEM holds both.
func Parse(keyPEM, certPEM []byte) (*Key, error) {
	return parse(source{pem: keyPEM}, source{pem: certPEM}, certPEM == nil, time.Now())
}

func load(keyPath, certPath string, now time.Time) (*Key, error) {
	if keyPath == "" {
		return nil, &Error{What: "key", Err: ErrMissing, Cure: "name its file with --key"}
	}
	if certPath == "" {
		certPath = keyPath
	}
	key, warning, err := read("key", keyPath)
	if err != nil {
		return nil, err
	}
	cert := source{path: certPath}
	if certPath != keyPath {
		if cert, _, err = read("certificate", certPath); err != nil {
			return nil, err
		}
	}
	k, err := parse(key, cert, certPath == keyPath, now)
	if err != nil {
		return nil, err
	}
	// Watch must find the files also when the process has changed its directory.
	k.keyPath, k.certPath = absolute(keyPath), absolute(certPath)
	if warning != "" {
		k.warnings = append([]string{warning}, k.warnings...)
	}
	return k, nil
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// parse makes a Key of a key's text and a chain's, which may be one.
func parse(key, cert source, one bool, now time.Time) (*Key, error) {
	if one {
		cert = source{path: key.path, pem: key.pem}
	}
	private, der, err := parseKey(key)
	if err != nil {
		return nil, err
	}
	chain, err := parseChain(cert, one)
	if err != nil {
		return nil, err
	}
	k := &Key{private: private, leaf: chain[0]}
	h := sha256.New()
	h.Write(der)
	for _, c := range chain {
		k.chain = append(k.chain, c.Raw)
		h.Write(c.Raw)
	}
	h.Sum(k.print[:0])
	if err := k.check(cert, chain, now); err != nil {
		return nil, err
	}
	k.warn(cert)
	return k, nil
}

// check sees to it that the leaf is the key's, and valid now.
func (k *Key) check(cert source, chain []*x509.Certificate, now time.Time) error {
	if !belongs(chain[0], k.private) {
		e := &Error{What: "certificate", Path: cert.path, Err: ErrMismatch,
			Cure: "use the certificate that was issued for this key"}
		for i, c := range chain[1:] {
			if belongs(c, k.private) {
				e.Detail, e.Cure = fmt.Sprintf("the key's is number %d", i+2), "put it first"
			}
		}
		return e
	}
	switch leaf := chain[0]; {
	case now.After(leaf.NotAfter):
		return &Error{What: "certificate", Path: cert.path, Err: ErrExpired,
			Detail: "on " + leaf.NotAfter.UTC().Format(time.RFC3339), Cure: "renew it"}
	case now.Before(leaf.NotBefore):
		return &Error{What: "certificate", Path: cert.path, Err: ErrNotYetValid,
			Detail: "only from " + leaf.NotBefore.UTC().Format(time.RFC3339), Cure: "wait, or set this machine's clock"}
	}
	return nil
}

func belongs(c *x509.Certificate, private crypto.Signer) bool {
	public, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(private.Public())
}

// warn notes what works and still should not be so.
func (k *Key) warn(cert source) {
	if key, ok := k.private.(*rsa.PrivateKey); ok && key.N.BitLen() < 2048 {
		k.warnings = append(k.warnings, fmt.Sprintf("RSA key of %d bits: servers refuse less than 2048: make a new key", key.N.BitLen()))
	}
	if usage := k.leaf.ExtKeyUsage; len(usage)+len(k.leaf.UnknownExtKeyUsage) > 0 {
		for _, u := range usage {
			if u == x509.ExtKeyUsageClientAuth || u == x509.ExtKeyUsageAny {
				return
			}
		}
		where := "certificate"
		if cert.path != "" {
			where += " file " + cert.path
		}
		k.warnings = append(k.warnings, where+": not made for client authentication: servers refuse it: have one issued with that extended key usage")
	}
}

// Public returns the public key.
func (k *Key) Public() crypto.PublicKey { return k.private.Public() }

// Sign signs a digest, or with Ed25519 a message; see [crypto.Signer].
func (k *Key) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if k.closed.Load() {
		return nil, ErrClosed
	}
	return k.private.Sign(rand, digest, opts)
}

// CertificateChain returns the chain as it is in the file, DER, leaf first.
func (k *Key) CertificateChain() [][]byte { return append([][]byte(nil), k.chain...) }

// Leaf returns the key's own certificate. Do not change it.
func (k *Key) Leaf() *x509.Certificate { return k.leaf }

// Warnings returns what works and still should not be so, one line each, with the cure.
func (k *Key) Warnings() []string { return append([]string(nil), k.warnings...) }

// TLSCertificate returns key and chain for crypto/tls. It signs through k, so closing k
// ends its use.
func (k *Key) TLSCertificate() *tls.Certificate {
	return &tls.Certificate{Certificate: k.CertificateChain(), PrivateKey: k, Leaf: k.leaf}
}

// Close makes Sign fail from then on. Handshakes of connections that are to live on need
// it: close a Key when its last connection has drained.
func (k *Key) Close() error {
	k.closed.Store(true)
	return nil
}

// Equal tells whether two Keys hold the same key and the same chain.
func (k *Key) Equal(other *Key) bool {
	return other != nil && bytes.Equal(k.print[:], other.print[:])
}

// String tells the kind of key and whose it is.
func (k *Key) String() string {
	kind := "key"
	switch public := k.private.Public().(type) {
	case *ecdsa.PublicKey:
		kind = "ECDSA " + public.Curve.Params().Name
	case *rsa.PublicKey:
		kind = fmt.Sprintf("RSA %d", public.N.BitLen())
	case ed25519.PublicKey:
		kind = "Ed25519"
	}
	return kind + " key of " + k.leaf.Subject.String()
}

// Format writes String whatever the verb: none may show the key.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }
