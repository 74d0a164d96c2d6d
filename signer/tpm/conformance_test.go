//go:build !windows

package tpm

import (
	"crypto/tls"
	"testing"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/signertest"
)

// TestConformance runs what holds for every key home. The TPM is lost by killing it.
func TestConformance(t *testing.T) {
	for _, tc := range []struct {
		a       signer.Algorithm
		schemes []tls.SignatureScheme
	}{
		{signer.ECP256, []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}},
		{signer.ECP384, []tls.SignatureScheme{tls.ECDSAWithP384AndSHA384}},
		{signer.RSA2048, []tls.SignatureScheme{tls.PSSWithSHA256, tls.PKCS1WithSHA256}},
	} {
		for where, options := range places {
			for _, protected := range []bool{false, true} {
				if protected && tc.a == signer.ECP384 {
					continue // as P-256
				}
				name := string(tc.a) + " in " + where
				if protected {
					name += " with password"
				}
				s := newSWTPM(t)
				o := options(s)
				if protected {
					o.Password = &secret{value: "right"}
				}
				s.create(o, tc.a).Close()
				o.Device = s.socket
				signertest.Run(t, signertest.Home{
					Name: name,
					Open: func(t *testing.T) signertest.Key {
						k, err := Open(t.Context(), o)
						if err != nil {
							t.Fatal(err)
						}
						return k
					},
					Lose:    func(*testing.T) { s.kill() },
					Return:  func(*testing.T) { s.start() },
					Schemes: tc.schemes,
				})
				s.empty()
			}
		}
	}
}
