// Package pki makes the certificate authorities, certificates and keys of the
// test cluster and of the peers that tests play themselves.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// CA is a certificate authority.
type CA struct {
	Cert *x509.Certificate
	PEM  []byte
	key  *ecdsa.PrivateKey
}

// Options say what a certificate is for.
type Options struct {
	CommonName    string
	Organizations []string
	Hosts         []string      // DNS names and IP addresses; makes it a server's certificate
	Age           time.Duration // how long ago it became valid; default an hour
	Lifetime      time.Duration // from then on; default a day
}

// Pair is a certificate with its key, PEM.
type Pair struct {
	Cert, Key []byte
	Leaf      *x509.Certificate
}

// NewCA makes a self-signed authority.
func NewCA(name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, SerialNumber: serial(),
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &CA{Cert: cert, PEM: block("CERTIFICATE", der), key: key}, nil
}

// Issue makes a P-256 key and a certificate for it.
func (ca *CA) Issue(o Options) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	leaf, err := ca.sign(key.Public(), o)
	if err != nil {
		return nil, err
	}
	return &Pair{Cert: block("CERTIFICATE", leaf.Raw), Key: block("PRIVATE KEY", pkcs8), Leaf: leaf}, nil
}

// Certify makes a certificate (PEM) for a key that is somewhere else.
func (ca *CA) Certify(public crypto.PublicKey, o Options) ([]byte, error) {
	leaf, err := ca.sign(public, o)
	if err != nil {
		return nil, err
	}
	return block("CERTIFICATE", leaf.Raw), nil
}

func (ca *CA) sign(public crypto.PublicKey, o Options) (*x509.Certificate, error) {
	if o.Age == 0 {
		o.Age = time.Hour
	}
	if o.Lifetime == 0 {
		o.Lifetime = 24 * time.Hour
	}
	begin := time.Now().Add(-o.Age)
	t := &x509.Certificate{
		Subject:      pkix.Name{CommonName: o.CommonName, Organization: o.Organizations},
		SerialNumber: serial(), NotBefore: begin, NotAfter: begin.Add(o.Lifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, h := range o.Hosts {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.Cert, public, ca.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Pool returns a pool with this authority alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

// WriteKey stores the authority's private key (0600), for a program that signs in its name.
func (ca *CA) WriteKey(path string) error {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return err
	}
	return WriteFile(path, block("PRIVATE KEY", pkcs8))
}

// TLS returns the pair for crypto/tls.
func (p *Pair) TLS() (tls.Certificate, error) { return tls.X509KeyPair(p.Cert, p.Key) }

// Write stores the pair as DIR/NAME.crt and DIR/NAME.key (0600). Each file is
// exchanged as a whole, the key first.
func (p *Pair) Write(dir, name string) (cert, key string, err error) {
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err = WriteFile(key, p.Key); err == nil {
		err = WriteFile(cert, p.Cert)
	}
	return cert, key, err
}

// WriteFile puts a new file (0600) in the place of path at once.
func WriteFile(path string, data []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// WriteServiceAccountKey writes the RSA key pair that signs service-account
// tokens, as DIR/sa.key and DIR/sa.pub.
func WriteServiceAccountKey(dir string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, "sa.pub"), block("PUBLIC KEY", pub)); err != nil {
		return err
	}
	return WriteFile(filepath.Join(dir, "sa.key"), block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)))
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(fmt.Sprintf("no random numbers: %v", err))
	}
	return n
}
