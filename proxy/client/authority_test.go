package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// An authority issues what a test proxy and its client need.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pair tls.Certificate // for the client, until an hour from now
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test authority"},
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.pair, err = a.issue("session", x509.ExtKeyUsageClientAuth)
	return a, err
}

func mustAuthority(t testing.TB) *authority {
	t.Helper()
	a, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) issue(name string, usage x509.ExtKeyUsage) (tls.Certificate, error) {
	return a.issueUntil(name, usage, time.Now().Add(time.Hour))
}

func (a *authority) issueUntil(name string, usage x509.ExtKeyUsage, end time.Time) (c tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotAfter:     end,
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
	}, a.cert, key.Public(), a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// status is an answer that names a socket and has the authority's pair.
func (a *authority) status(socket string, expires time.Time) *clientauthentication.Status {
	url, err := clientauthentication.SocketURL(socket)
	if err != nil {
		panic(err)
	}
	s := &clientauthentication.Status{ExpirationTimestamp: expires}
	s.ProxyConfig = &clientauthentication.ProxyConfig{
		URL:                      url,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}),
	}
	s.ClientCertificateData, s.ClientKeyData = text(a.pair)
	return s
}

func text(pair tls.Certificate) (cert, key string) {
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}
