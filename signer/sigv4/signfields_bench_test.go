package sigv4

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer"
)

// programFields are those of a program that is built with client-go.
var programFields = []signer.Field{
	{Name: "accept", Value: "application/json"},
	{Name: "user-agent", Value: "controller/v1.2.3 (linux/amd64) kubernetes/0123456"},
	{Name: "accept-encoding", Value: "gzip"},
}

// getRequest is a kubectl get's.
func getRequest() *signer.Request {
	return &signer.Request{
		Method: "GET", Scheme: "https", Authority: "prod.example:6443",
		Path: "/api/v1/namespaces/default/pods", RawQuery: "limit=500", ContentSHA256: signer.EmptySHA256,
	}
}

var getFields = []signer.Field{
	{Name: "accept", Value: "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"},
	{Name: "user-agent", Value: "kubectl/v1.36.3 (linux/amd64) kubernetes/0123456"},
	{Name: "kubectl-command", Value: "kubectl get"},
	{Name: "kubectl-session", Value: "fb4b1c9e-6a2f-4f0c-8a3e-6d1f0a7d7c11"},
	{Name: "accept-encoding", Value: "gzip"},
}

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
