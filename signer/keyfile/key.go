package keyfile

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/certificate"
)

// Key is a private key from a file, and its certificate chain. It implements [signer.Key].
type Key struct {
	private  crypto.Signer
	chain    [][]byte
	leaf     *x509.Certificate // nil for one without a chain
	warnings []string
	closed   atomic.Bool

	keyPath, certPath string            // "" for what has no files to watch
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

// LoadBare reads a key alone, whose chain is kept elsewhere or not issued yet: its
// CertificateChain is empty, its Leaf nil. It fails with a *[Error].
func LoadBare(path string) (*Key, error) {
	if path == "" {
		return nil, &Error{What: "key", Err: ErrMissing, Cure: "name its file with --key"}
	}
	s, warning, err := read("key", path)
	if err != nil {
		return nil, err
	}
	private, der, err := parseKey(s)
	if err != nil {
		return nil, err
	}
	k := assemble(private, der, nil)
	if warning != "" {
		k.warnings = []string{warning}
	}
	return k, nil
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
	if err := certificate.Check(chain, private.Public(), cert.path, now); err != nil {
		return nil, err
	}
	k := assemble(private, der, chain)
	k.warnings = certificate.Warnings(chain, cert.path)
	return k, nil
}

// assemble makes a Key of parts that belong together. der identifies the private one.
func assemble(private crypto.Signer, der []byte, chain []*x509.Certificate) *Key {
	k := &Key{private: private}
	h := sha256.New()
	h.Write(der)
	for _, c := range chain {
		k.chain = append(k.chain, c.Raw)
		h.Write(c.Raw)
	}
	h.Sum(k.print[:0])
	if len(chain) > 0 {
		k.leaf = chain[0]
	}
	return k
}

// Public returns the public key.
func (k *Key) Public() crypto.PublicKey { return k.private.Public() }

// Sign signs a digest, or with Ed25519 a message; see [crypto.Signer].
func (k *Key) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if k.closed.Load() {
		return nil, ErrClosed
	}
	// ECDSA would sign anything, cut to its size.
	if opts != nil {
		if h := opts.HashFunc(); h.Available() && len(digest) != h.Size() {
			return nil, fmt.Errorf("digest of %d bytes: %v has %d", len(digest), h, h.Size())
		}
	}
	return k.private.Sign(rand, digest, opts)
}

// SupportedSignatureAlgorithms are the TLS schemes that the key can sign with, for
// [tls.Certificate]. In TLS 1.2 an ECDSA key can do more than these, which are those of both
// versions.
func (k *Key) SupportedSignatureAlgorithms() []tls.SignatureScheme {
	switch public := k.private.Public().(type) {
	case *ecdsa.PublicKey:
		switch public.Curve {
		case elliptic.P256():
			return []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}
		case elliptic.P384():
			return []tls.SignatureScheme{tls.ECDSAWithP384AndSHA384}
		case elliptic.P521():
			return []tls.SignatureScheme{tls.ECDSAWithP521AndSHA512}
		}
	case *rsa.PublicKey:
		all := []tls.SignatureScheme{tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512,
			tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512}
		if public.Size() < 2*sha512.Size+2 { // what PSS needs, with a salt as long as the hash
			all = slices.Delete(all, 2, 3)
		}
		return all
	case ed25519.PublicKey:
		return []tls.SignatureScheme{tls.Ed25519}
	}
	return nil
}

// CertificateChain returns the chain as it is in the file, DER, leaf first.
func (k *Key) CertificateChain() [][]byte { return append([][]byte(nil), k.chain...) }

// Leaf returns the key's own certificate, nil where it was loaded without. Do not change it.
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
	kind := signer.Kind(k.Public())
	if k.leaf == nil {
		return kind + " key without certificate"
	}
	return kind + " key of " + k.leaf.Subject.String()
}

// Format writes String whatever the verb: none may show the key.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }
