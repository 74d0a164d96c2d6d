package sigv4

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer"
)

func benchmarkFields(b *testing.B, r *signer.Request, sent []signer.Field, token string) {
	s := ready(b, newSigner(b, func(o *Options) {
		o.Clock = nil
		o.Credentials = credentials.NewStaticCredentialsProvider(testID, testSecret, token)
	}))
	var out signer.Fields
	b.ReportAllocs()
	for b.Loop() {
		out.Reset()
		if ok, err := s.SignFields(r, sent, &out); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkSignFields(b *testing.B) {
	long := strings.Repeat("t", 900)
	exec := testRequest()
	for _, bench := range []struct {
		name  string
		r     *signer.Request
		sent  []signer.Field
		token string
	}{
		{"client-go/no token", getRequest(), programFields, ""},
		{"client-go/900 byte token", getRequest(), programFields, long},
		{"get/no token", getRequest(), getFields, ""},
		{"get/900 byte token", getRequest(), getFields, long},
		{"exec/no token", exec, flat(exec.Header), ""},
		{"exec/900 byte token", exec, flat(exec.Header), long},
	} {
		b.Run(bench.name, func(b *testing.B) { benchmarkFields(b, bench.r, bench.sent, bench.token) })
	}
}

// BenchmarkSignFieldsParallel: goroutines share nothing that they would wait for.
func BenchmarkSignFieldsParallel(b *testing.B) {
	s := ready(b, newSigner(b, func(o *Options) { o.Clock = nil }))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var out signer.Fields
		r := getRequest()
		for pb.Next() {
			out.Reset()
			if ok, err := s.SignFields(r, programFields, &out); !ok || err != nil {
				b.Error(ok, err)
				return
			}
		}
	})
}

// BenchmarkSDK is what the SDK's signer needs for the same, given a request of its own.
func BenchmarkSDK(b *testing.B) {
	long := strings.Repeat("t", 900)
	for _, bench := range []struct {
		name  string
		sent  []signer.Field
		token string
	}{
		{"client-go/no token", programFields, ""},
		{"client-go/900 byte token", programFields, long},
		{"get/no token", getFields, ""},
		{"get/900 byte token", getFields, long},
	} {
		b.Run(bench.name, func(b *testing.B) {
			creds := aws.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, SessionToken: bench.token}
			r, sdk := getRequest(), newSDK(sdkOptions{})
			b.ReportAllocs()
			for b.Loop() {
				req := sdkRequest(r, bench.sent)
				if err := sdk.SignHTTP(b.Context(), creds, req, r.ContentSHA256, "eks", "eu-central-1", testTime); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
