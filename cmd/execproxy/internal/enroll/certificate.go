package enroll

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"
)

// longestChain bounds the certificates that a signer may give for one.
const longestChain = 16

// parseChain reads what a signer put into a request: PEM, leaf first.
func parseChain(name string, text []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, &CertificateError{name, fmt.Sprintf("there is a PEM block of type %q in it: ask whoever runs the signer", oneLine(block.Type, 40))}
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &CertificateError{name, oneLine(err.Error(), 200) + ": ask whoever runs the signer"}
		}
		if chain = append(chain, c); len(chain) > longestChain {
			return nil, &CertificateError{name, fmt.Sprintf("it is a chain of more than %d: ask whoever runs the signer", longestChain)}
		}
	}
	if len(chain) == 0 {
		return nil, &CertificateError{name, "it is no PEM of the type CERTIFICATE: ask whoever runs the signer"}
	}
	return chain, nil
}

// check sees to it that the chain is of use to the holder of the key, now.
func check(name string, chain []*x509.Certificate, public crypto.PublicKey, now time.Time) error {
	problem := ""
	switch leaf := chain[0]; {
	case !equalKeys(public, leaf.PublicKey):
		problem = "it is for another public key than was asked for: do not use it, ask whoever runs the signer"
		if slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return equalKeys(public, c.PublicKey) }) {
			problem = "the key's own is not the first of the chain: ask whoever runs the signer"
		}
	case now.After(leaf.NotAfter):
		problem = "it ended at " + leaf.NotAfter.UTC().Format(time.RFC3339) + ": request again, or set this machine's clock"
	case now.Before(leaf.NotBefore):
		problem = "it is valid only from " + leaf.NotBefore.UTC().Format(time.RFC3339) + ": wait, or set this machine's clock"
	case !forClients(leaf):
		problem = "it is not made for client authentication: use another signer, such as " + SignerClient
	}
	if problem == "" {
		return nil
	}
	return &CertificateError{name, problem}
}

// forClients tells whether a TLS server takes c for a client's (RFC 5280, 4.2.1.12: no
// extended key usage at all means any).
func forClients(c *x509.Certificate) bool {
	if len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 {
		return true
	}
	return slices.ContainsFunc(c.ExtKeyUsage, func(u x509.ExtKeyUsage) bool {
		return u == x509.ExtKeyUsageClientAuth || u == x509.ExtKeyUsageAny
	})
}

// encodeChain is the chain without anything that was around it.
func encodeChain(chain []*x509.Certificate) []byte {
	var text []byte
	for _, c := range chain {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}
