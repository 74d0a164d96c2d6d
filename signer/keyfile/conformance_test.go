package keyfile

import (
	"crypto/tls"
	"path/filepath"
	"testing"

	"github.com/execproxy/execproxy/signer/signertest"
)

// TestConformance: a key in a file is a key as all others are. It cannot be lost: it is in
// memory.
func TestConformance(t *testing.T) {
	rsaSchemes := []tls.SignatureScheme{tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512,
		tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512}
	for kind, schemes := range map[string][]tls.SignatureScheme{
		"P-256":   {tls.ECDSAWithP256AndSHA256},
		"P-384":   {tls.ECDSAWithP384AndSHA384},
		"P-521":   {tls.ECDSAWithP521AndSHA512},
		"RSA":     rsaSchemes,
		"Ed25519": {tls.Ed25519},
	} {
		dir := t.TempDir()
		key := kinds()[kind]
		keyPath := write(t, filepath.Join(dir, "tls.key"), pkcs8(t, key))
		certPath := write(t, filepath.Join(dir, "tls.crt"), issue(t, key, leaf{name: "jane"}), caPEM())
		signertest.Run(t, signertest.Home{
			Name: kind,
			Open: func(t *testing.T) signertest.Key {
				k, err := Load(keyPath, certPath)
				if err != nil {
					t.Fatal(err)
				}
				return k
			},
			Schemes: schemes,
		})
	}
}
