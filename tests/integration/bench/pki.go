package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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

// pki are files: of the CA, of the server and of the one client it knows.
type pki struct{ ca, cert, key, clientCert, clientKey string }

// serverName is what the API server is called beside its address.
const serverName = "api.bench"

func files(dir string) pki {
	f := func(name string) string { return filepath.Join(dir, name) }
	return pki{f("ca.crt"), f("server.crt"), f("server.key"), f("client.crt"), f("client.key")}
}

func writePKI(dir string) (pki, error) {
	p := files(dir)
	now := time.Now()
	template := func(serial int64, name string, usage x509.ExtKeyUsage) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	}
	ca := template(1, "bench-ca", x509.ExtKeyUsageAny)
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage, ca.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	caKey, err := issue(ca, ca, nil, p.ca, "")
	if err != nil {
		return p, err
	}
	server := template(2, "bench-server", x509.ExtKeyUsageServerAuth)
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	server.DNSNames = []string{serverName} // nginx compares no addresses
	if _, err := issue(server, ca, caKey, p.cert, p.key); err != nil {
		return p, err
	}
	_, err = issue(template(3, "bench-client", x509.ExtKeyUsageClientAuth), ca, caKey, p.clientCert, p.clientKey)
	return p, err
}

// issue writes a certificate and, where keyFile is named, its key. Without a
// signer it signs itself.
func issue(cert, parent *x509.Certificate, signer *ecdsa.PrivateKey, certFile, keyFile string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return nil, err
	}
	if keyFile == "" {
		return key, nil
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600)
}

func readPool(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: no certificate in it", file)
	}
	return pool, nil
}
