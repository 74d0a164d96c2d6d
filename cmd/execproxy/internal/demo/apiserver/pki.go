package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// lifetime of every certificate here; the demonstration takes seconds, a slow debugger may take longer.
const lifetime = time.Hour

// authority is a throw-away certificate authority. Its key stays in memory and dies with the process.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", name, err)
	}
	t := template(pkix.Name{CommonName: name})
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of %s: %w", name, err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{key: key, cert: cert, pool: pool}, nil
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// client issues a client certificate as kube-apiserver reads it: CN is the user, O the groups.
func (a *authority) client(user string, groups []string) (keyPEM, certPEM []byte, err error) {
	key, der, err := a.leaf(pkix.Name{CommonName: user, Organization: groups}, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the key of %s: %w", user, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// server issues the serving certificate, for loopback only.
func (a *authority) server() (tls.Certificate, error) {
	key, der, err := a.leaf(pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func (a *authority) leaf(name pkix.Name, use x509.ExtKeyUsage) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making the key of %s: %w", name.CommonName, err)
	}
	t := template(name)
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{use}
	if use == x509.ExtKeyUsageServerAuth {
		t.DNSNames = []string{"localhost"}
		t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issuing the certificate of %s: %w", name.CommonName, err)
	}
	return key, der, nil
}

func template(name pkix.Name) *x509.Certificate {
	serial := new(big.Int)
	var b [16]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails since Go 1.24
	b[0] &= 0x7f           // RFC 5280, section 4.1.2.2: positive
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.SetBytes(b[:]),
		Subject:      name,
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(lifetime),
	}
}
