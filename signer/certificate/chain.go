package certificate

import (
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"time"
)

// Load reads the chain of a PEM file, leaf first. Blocks of other kinds are passed over. It
// fails with an *[Error].
func Load(path string) ([]*x509.Certificate, error) {
	text, _, err := ReadFile("certificate", path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// Parse is Load for what is in memory already; path is named in errors, and may be "".
func Parse(path string, text []byte) ([]*x509.Certificate, error) {
	all, err := Blocks("certificate", path, text)
	if err != nil {
		return nil, err
	}
	var chain []*x509.Certificate
	for _, b := range all {
		if b.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, &Error{What: "certificate", Path: path, Err: ErrMalformed,
				Detail: fmt.Sprintf("certificate number %d cannot be parsed", len(chain)+1), Cure: "write it again"}
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, noCertificate(path)
	}
	return chain, nil
}

func noCertificate(path string) *Error {
	return &Error{What: "certificate", Path: path, Err: ErrNoCertificate,
		Cure: "name a PEM file with CERTIFICATE blocks, leaf first, with --cert"}
}

// Check sees to it that the leaf of the chain is that of the key, and valid now. path is
// named in errors, and may be "". It fails with an *[Error].
func Check(chain []*x509.Certificate, public crypto.PublicKey, path string, now time.Time) error {
	if len(chain) == 0 {
		return noCertificate(path)
	}
	if !Belongs(chain[0], public) {
		e := &Error{What: "certificate", Path: path, Err: ErrMismatch,
			Cure: "use the certificate that was issued for this key"}
		for i, c := range chain[1:] {
			if Belongs(c, public) {
				e.Detail, e.Cure = fmt.Sprintf("the key's is number %d", i+2), "put it first"
			}
		}
		return e
	}
	switch leaf := chain[0]; {
	case now.After(leaf.NotAfter):
		return &Error{What: "certificate", Path: path, Err: ErrExpired,
			Detail: "on " + leaf.NotAfter.UTC().Format(time.RFC3339), Cure: "have a new one issued, `execproxy key enroll`"}
	case now.Before(leaf.NotBefore):
		return &Error{What: "certificate", Path: path, Err: ErrNotYetValid,
			Detail: "only from " + leaf.NotBefore.UTC().Format(time.RFC3339), Cure: "wait, or set this machine's clock"}
	}
	return nil
}

// Belongs reports a certificate that was issued for the key.
func Belongs(c *x509.Certificate, public crypto.PublicKey) bool {
	own, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && own.Equal(public)
}

// Warnings returns what works and still should not be so, one line each, with the cure. path
// is named in them, and may be "".
func Warnings(chain []*x509.Certificate, path string) (warnings []string) {
	if len(chain) == 0 {
		return nil
	}
	leaf := chain[0]
	if key, ok := leaf.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() < 2048 {
		warnings = append(warnings, fmt.Sprintf("RSA key of %d bits: servers refuse less than 2048: make a new key", key.N.BitLen()))
	}
	if usage := leaf.ExtKeyUsage; len(usage)+len(leaf.UnknownExtKeyUsage) > 0 {
		for _, u := range usage {
			if u == x509.ExtKeyUsageClientAuth || u == x509.ExtKeyUsageAny {
				return warnings
			}
		}
		where := "certificate"
		if path != "" {
			where += " file " + path
		}
		warnings = append(warnings, where+": not made for client authentication: servers refuse it: have one issued with that extended key usage")
	}
	return warnings
}
