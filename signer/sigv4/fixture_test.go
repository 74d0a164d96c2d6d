package sigv4

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"testing"
	"time"
	"unsafe"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"go.uber.org/goleak"

	"github.com/execproxy/execproxy/signer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Nobody's credentials.
const (
	testID     = "AKIDTEST"
	testSecret = "canary-secret-key"
	testToken  = "canary-session-token"
)

var testTime = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func testOptions() Options {
	return Options{Region: "eu-central-1", Service: "eks", Clock: at(testTime),
		Credentials: credentials.NewStaticCredentialsProvider(testID, testSecret, testToken)}
}

func newSigner(t testing.TB, change ...func(*Options)) *Signer {
	t.Helper()
	o := testOptions()
	for _, f := range change {
		f(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testLookup(accessKeyID, date, region, service string) ([]byte, Identity, error) {
	if accessKeyID != testID {
		return nil, Identity{}, ErrUnknownKey
	}
	return DeriveKey(testSecret, date, region, service), Identity{User: "jane"}, nil
}

func testVerifier() *Verifier {
	return &Verifier{Region: "eu-central-1", Service: "eks", Lookup: testLookup, Clock: at(testTime)}
}

func hashOf(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// testRequest is a kubectl exec's, as a proxy would show it.
func testRequest() *signer.Request {
	return &signer.Request{
		Method: "POST", Scheme: "https", Authority: "[::1]:6443",
		Path:     "/api/v1/namespaces/kube-system/pods/a%2Fb:c/exec",
		RawQuery: "command=ls&command=-la&command=/tmp&labelSelector=a+in+%28b%29&stdout",
		Header: http.Header{
			"Content-Type":      {"application/json"},
			"Impersonate-User":  {"CN=jane doe,OU=dev"},
			"Impersonate-Group": {"dev", "ops"},
			"Accept":            {"application/json", "*/*"},
			"User-Agent":        {"kubectl/v1.36.3"},
			"Accept-Encoding":   {"gzip"},
			"Audit-Id":          {"  x   y "},
		},
		ContentSHA256: hashOf("body"),
	}
}

// signed returns r as it would be sent.
func signed(t testing.TB, s *Signer, r *signer.Request) *signer.Request {
	t.Helper()
	fields, err := s.SignRequest(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return with(r, fields)
}

func with(r *signer.Request, fields http.Header) *signer.Request {
	out := *r
	out.Header = r.Header.Clone()
	if out.Header == nil {
		out.Header = http.Header{}
	}
	for name, values := range fields {
		out.Header[name] = values
	}
	return &out
}

// sameAddress tells whether two strings are one.
func sameAddress(a, b string) bool {
	return len(a) == len(b) && unsafe.StringData(a) == unsafe.StringData(b)
}

var testCredentials = aws.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, SessionToken: testToken}
