package daemon

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

// SessionID names the session of a server, an identity there, and those who read
// one kubeconfig, or else dial one set of addresses. A pair of it must never open
// the way to another server, or as somebody else. What may change between two
// starts is not in it: the bytes of a certificate, the way there, a policy.
func SessionID(c *config.Config, environ []string) string {
	who := config.Config{Identity: c.Identity}
	who.Server, who.TLSServerName = c.Server, c.TLSServerName
	who.PINSource, who.Renew, who.RenewBefore, who.SignerName = "", "", 0, ""
	who.KeyPEM, who.CertPEM = nil, subject(c.CertPEM)
	lasting := slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return wayVariable(name) || rootsVariable(name) || name == "AWS_SECRET_ACCESS_KEY" || name == "AWS_SESSION_TOKEN"
	})
	readers := []string{"session", c.KubeconfigOut}
	if c.KubeconfigOut == "" {
		readers = append(readers, c.Listen...)
	}
	return ID(&who, lasting, strings.Join(readers, " "))
}

// subject is who the first certificate of a chain is for; nil where there is none.
func subject(chain []byte) []byte {
	block, _ := pem.Decode(chain)
	if block == nil {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return c.RawSubject
}
