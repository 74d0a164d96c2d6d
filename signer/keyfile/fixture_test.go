package keyfile

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kinds are made once: RSA takes its time.
var kinds = sync.OnceValue(func() map[string]crypto.Signer {
	ec := func(c elliptic.Curve) crypto.Signer {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			panic(err)
		}
		return k
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return map[string]crypto.Signer{
		"P-256": ec(elliptic.P256()), "P-384": ec(elliptic.P384()), "P-521": ec(elliptic.P521()), "P-224": ec(elliptic.P224()),
		"RSA": rsaKey, "Ed25519": ed,
	}
})

func newKey() crypto.Signer {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return k
}

// ca signs everybody.
var ca = sync.OnceValues(func() (*x509.Certificate, crypto.Signer) {
	key := newKey()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}}, key.Public(), key)
	if err != nil {
		panic(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return c, key
})

type leaf struct {
	name      string
	notBefore time.Time
	notAfter  time.Time
	usage     []x509.ExtKeyUsage
}

func issue(t testing.TB, key crypto.Signer, l leaf) []byte {
	t.Helper()
	if l.notBefore.IsZero() {
		l.notBefore = time.Now().Add(-time.Hour)
	}
	if l.notAfter.IsZero() {
		l.notAfter = time.Now().Add(time.Hour)
	}
	if l.usage == nil {
		l.usage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	parent, parentKey := ca()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: l.name},
		NotBefore: l.notBefore, NotAfter: l.notAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: l.usage,
	}, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	return block("CERTIFICATE", der)
}

func caPEM() []byte {
	c, _ := ca()
	return block("CERTIFICATE", c.Raw)
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func pkcs8(t testing.TB, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return block("PRIVATE KEY", der)
}

func sec1(t testing.TB, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return block("EC PRIVATE KEY", der)
}

// pair makes a key and its certificate, as PEM.
func pair(t testing.TB, name string) (key, cert []byte) {
	t.Helper()
	k := newKey()
	return pkcs8(t, k), issue(t, k, leaf{name: name})
}

func write(t testing.TB, path string, parts ...[]byte) string {
	t.Helper()
	if err := os.WriteFile(path, bytes.Join(parts, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func writePair(t testing.TB, dir, name string) (keyPath, certPath string) {
	t.Helper()
	key, cert := pair(t, name)
	return write(t, filepath.Join(dir, "tls.key"), key), write(t, filepath.Join(dir, "tls.crt"), cert, caPEM())
}
