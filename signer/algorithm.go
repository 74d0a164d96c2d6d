package signer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"fmt"
	"strings"
)

// An Algorithm is a kind of key that a home can make.
type Algorithm string

// The kinds of keys. Every Kubernetes API server takes them all; the first is the default,
// because TPMs and tokens sign with it fastest.
const (
	ECP256  Algorithm = "ec-p256"
	ECP384  Algorithm = "ec-p384"
	RSA2048 Algorithm = "rsa-2048"
	RSA3072 Algorithm = "rsa-3072"
)

// Algorithms are all of them, the default first.
func Algorithms() []Algorithm { return []Algorithm{ECP256, ECP384, RSA2048, RSA3072} }

// ParseAlgorithm reads the name of a kind of key; "" is the default.
func ParseAlgorithm(s string) (Algorithm, error) {
	if s == "" {
		return ECP256, nil
	}
	names := make([]string, 0, 4)
	for _, a := range Algorithms() {
		if string(a) == s {
			return a, nil
		}
		names = append(names, string(a))
	}
	return "", fmt.Errorf("%q is no kind of key; it is one of %s", s, strings.Join(names, ", "))
}

// Kind names the algorithm and the size of a key: "ECDSA P-256", "RSA 2048", "Ed25519".
func Kind(public crypto.PublicKey) string {
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA " + public.Curve.Params().Name
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", public.N.BitLen())
	case ed25519.PublicKey:
		return "Ed25519"
	}
	return fmt.Sprintf("%T", public)
}
