package sigv4

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
)

func BenchmarkSignRequest(b *testing.B) {
	for name, token := range map[string]string{"no token": "", "900 byte token": strings.Repeat("t", 900)} {
		b.Run(name, func(b *testing.B) {
			s := newSigner(b, func(o *Options) {
				o.Credentials = credentials.NewStaticCredentialsProvider(testID, testSecret, token)
			})
			r := testRequest()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.SignRequest(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	r := signed(b, newSigner(b), testRequest())
	key := DeriveKey(testSecret, "20260901", "eu-central-1", "eks")
	v := testVerifier()
	v.Lookup = func(string, string, string, string) ([]byte, Identity, error) { return key, Identity{}, nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRetrieve(b *testing.B) {
	c := NewCredentials(credentials.NewStaticCredentialsProvider(testID, testSecret, ""), CacheOptions{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Retrieve(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
