//go:build unix && cgo && !nopkcs11

package pkcs11

import (
	"crypto"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/ThalesIgnite/crypto11"

	"github.com/execproxy/execproxy/signer"
)

// BenchmarkSign compares signatures through the child with those of crypto11 in this process:
// what the pipe costs.
func BenchmarkSign(b *testing.B) {
	for _, algorithm := range []signer.Algorithm{signer.ECP256, signer.RSA2048} {
		h := newSoftHSM(b)
		h.token("main", algorithm)
		for _, env := range h.env {
			name, value, _ := strings.Cut(env, "=")
			if name == "SOFTHSM2_CONF" {
				b.Setenv(name, value)
			}
		}
		k := h.open(testKey, func(o *Options) { o.Module, o.Sessions = h.library, 8 })
		b.Run(string(algorithm)+"/child", func(b *testing.B) { benchmarkSign(b, k) })
		c, err := crypto11.Configure(&crypto11.Config{Path: h.library, TokenLabel: "main", Pin: userPIN, MaxSessions: 9})
		check(b, err)
		s, err := c.FindKeyPair(nil, []byte("test"))
		check(b, err)
		b.Run(string(algorithm)+"/in process", func(b *testing.B) { benchmarkSign(b, s) })
		check(b, c.Close())
	}
}

func benchmarkSign(b *testing.B, s crypto.Signer) {
	digest := sha256.Sum256([]byte("message"))
	one := func(b *testing.B) {
		if _, err := s.Sign(nil, digest[:], crypto.SHA256); err != nil {
			b.Error(err)
		}
	}
	b.Run("1 worker", func(b *testing.B) {
		for b.Loop() {
			one(b)
		}
	})
	b.Run("16 workers", func(b *testing.B) {
		b.SetParallelism(8) // for each of two processors
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				one(b)
			}
		})
	})
}

// BenchmarkOpen is what a reopening costs at least.
func BenchmarkOpen(b *testing.B) {
	h := newSoftHSM(b)
	h.token("main", signer.ECP256)
	for b.Loop() {
		k, err := Open(b.Context(), h.options(testKey))
		check(b, err)
		check(b, k.Close())
	}
}
