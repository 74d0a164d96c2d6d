//go:build !windows

package tpm

import (
	"crypto"
	"crypto/rsa"
	"fmt"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

// BenchmarkSign signs with the handle kept.
func BenchmarkSign(b *testing.B) {
	for _, tc := range []struct {
		name string
		a    signer.Algorithm
		o    Options
		opts crypto.SignerOpts
	}{
		{"EC", signer.ECP256, Options{}, crypto.SHA256},
		{"EC-password", signer.ECP256, Options{Password: &secret{value: "right"}}, crypto.SHA256},
		{"RSA", signer.RSA2048, Options{}, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}},
	} {
		for _, workers := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/workers=%d", tc.name, workers), func(b *testing.B) {
				s := newSWTPM(b)
				o := tc.o
				o.File = s.file("key.pem")
				k := s.create(o, tc.a)
				sum := digest
				sign := func() {
					if _, err := k.Sign(nil, sum[:], tc.opts); err != nil {
						b.Error(err)
					}
				}
				b.ReportAllocs()
				if workers == 1 {
					for b.Loop() {
						sign()
					}
				} else {
					b.SetParallelism(workers) // times GOMAXPROCS
					b.ResetTimer()
					b.RunParallel(func(p *testing.PB) {
						for p.Next() {
							sign()
						}
					})
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "signs/s")
			})
		}
	}
}

// BenchmarkOpen is what a rotation, or the start of a proxy, pays.
func BenchmarkOpen(b *testing.B) {
	for _, a := range []signer.Algorithm{signer.ECP256, signer.RSA2048} {
		b.Run(string(a), func(b *testing.B) {
			s := newSWTPM(b)
			s.create(Options{File: s.file("key.pem")}, a).Close()
			for b.Loop() {
				k, err := Open(b.Context(), Options{Device: s.socket, File: s.file("key.pem")})
				if err != nil {
					b.Fatal(err)
				}
				k.Close()
			}
		})
	}
}
