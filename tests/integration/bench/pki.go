package main

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"

	certs "github.com/execproxy/execproxy/tests/integration/internal/pki"
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
	ca, err := certs.NewCA("bench-ca")
	if err != nil {
		return p, err
	}
	if err := certs.WriteFile(p.ca, ca.PEM); err != nil {
		return p, err
	}
	for name, o := range map[string]certs.Options{
		"server": {CommonName: "bench-server", Hosts: []string{"127.0.0.1", serverName}}, // nginx compares no addresses
		"client": {CommonName: "bench-client"},
	} {
		pair, err := ca.Issue(o)
		if err != nil {
			return p, err
		}
		if _, _, err := pair.Write(dir, name); err != nil {
			return p, err
		}
	}
	return p, nil
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
