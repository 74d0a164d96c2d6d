package sigv4

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer"
)

var (
	_ signer.RequestSigner    = (*Signer)(nil)
	_ signer.BodyHasher       = (*Signer)(nil)
	_ signer.ResponseObserver = (*Signer)(nil)
)

func TestNewRefuses(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"no region":               func(o *Options) { o.Region = "" },
		"no service":              func(o *Options) { o.Service = "" },
		`region "a/b"`:            func(o *Options) { o.Region = "a/b" },
		`service "x y"`:           func(o *Options) { o.Service = "x y" },
		"no credentials provider": func(o *Options) { o.Credentials = nil },
		"unknown path mode":       func(o *Options) { o.Path = 7 },
		"does not normalise":      func(o *Options) { o.Service = "s3"; o.Path = PathNormalized },
	} {
		o := testOptions()
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestSignTouchesNothing: the signer sees a view; the request stays as it was, byte for byte.
func TestSignTouchesNothing(t *testing.T) {
	r, before := testRequest(), testRequest()
	s := newSigner(t, func(o *Options) { o.BindTarget = true })
	fields, err := s.SignRequest(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r, before) {
		t.Errorf("the request changed:\n%+v\nwas\n%+v", r, before)
	}
	got := slices.Sorted(maps.Keys(fields))
	want := []string{fieldAuthorization, fieldSHA256, fieldDate, fieldToken, TargetHeader}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("fields %q, want %q", got, want)
	}
	if _, err := testVerifier().Verify(with(r, fields)); err != nil {
		t.Error(err)
	}
}

// TestSignGolden pins the whole answer, so that any change of what is signed is seen.
func TestSignGolden(t *testing.T) {
	s := newSigner(t, func(o *Options) { o.BindTarget = true })
	fields, err := s.SignRequest(t.Context(), testRequest())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		fieldDate:    "20260901T120000Z",
		fieldToken:   testToken,
		fieldSHA256:  hashOf("body"),
		TargetHeader: hashOf("/api/v1/namespaces/kube-system/pods/a%2Fb:c/exec?command=ls&command=-la&command=/tmp&labelSelector=a+in+%28b%29&stdout"),
		fieldAuthorization: "AWS4-HMAC-SHA256 Credential=AKIDTEST/20260901/eu-central-1/eks/aws4_request, " +
			"SignedHeaders=accept;audit-id;content-type;host;impersonate-group;impersonate-user;x-amz-content-sha256;x-amz-date;x-amz-security-token;x-execproxy-target-sha256, " +
			"Signature=1d87ccdc6b271fdbafa944f93ee3553b266d40e2be2c4c03418e5d50bd418ec7",
	} {
		if got := fields.Get(name); got != want {
			t.Errorf("%s\n got %s\nwant %s", name, got, want)
		}
	}
}

// TestCanonicalRequest pins the form of a Kubernetes path: encoded twice, ":" and "%2F" kept
// apart from "/", and a query in the order of its encoded pairs.
func TestCanonicalRequest(t *testing.T) {
	path, err := canonicalPath(testRequest().Path, PathStrict, false)
	if want := "/api/v1/namespaces/kube-system/pods/a%252Fb%3Ac/exec"; err != nil || path != want {
		t.Errorf("path %s, %v, want %s", path, err, want)
	}
	query := canonicalQuery(pairs(testRequest().RawQuery))
	if want := "command=%2Ftmp&command=-la&command=ls&labelSelector=a%20in%20%28b%29&stdout="; query != want {
		t.Errorf("query %s, want %s", query, want)
	}
}

// TestHeadersNotSigned: what may change on its way stays out, however it is written.
func TestHeadersNotSigned(t *testing.T) {
	r := testRequest()
	for _, name := range []string{"connection", "Keep-Alive", "TE", "trailer", "Transfer-Encoding", "upgrade",
		"Proxy-Authorization", "proxy-connection", "user-agent", "X-Amzn-Trace-Id", "accept-encoding", "Expect",
		"authorization", "x-amz-date", "X-Amz-Content-Sha256", "x-execproxy-target-sha256", "Http2-Settings"} {
		r.Header[name] = []string{"whatever, " + name}
	}
	// Even one that names what the signer adds.
	r.Header["Connection"] = []string{"Authorization, X-Amz-Date"}
	fields, err := newSigner(t).SignRequest(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseAuthorization(fields.Get(fieldAuthorization))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"accept", "audit-id", "content-type", "host", "impersonate-group", "impersonate-user",
		"x-amz-content-sha256", "x-amz-date", "x-amz-security-token"}
	if !slices.Equal(c.signed, want) {
		t.Errorf("signed %q\nwant   %q", c.signed, want)
	}
}

func TestSignRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*signer.Request)
		field  string
	}{
		"raw semicolon":        {func(r *signer.Request) { r.RawQuery = "a=1;b=2" }, "query"},
		"bad query escape":     {func(r *signer.Request) { r.RawQuery = "a=%zz" }, "query"},
		"cut query escape":     {func(r *signer.Request) { r.RawQuery = "a=%2" }, "query"},
		"space in query":       {func(r *signer.Request) { r.RawQuery = "a=b c" }, "query"},
		"fragment in query":    {func(r *signer.Request) { r.RawQuery = "a#b" }, "query"},
		"too many parameters":  {func(r *signer.Request) { r.RawQuery = strings.Repeat("a&", 10_000) }, "query"},
		"bad path escape":      {func(r *signer.Request) { r.Path = "/%zz" }, "path"},
		"cut path escape":      {func(r *signer.Request) { r.Path = "/%a" }, "path"},
		"question mark":        {func(r *signer.Request) { r.Path = "/a?b" }, "path"},
		"no slash":             {func(r *signer.Request) { r.Path = "" }, "path"},
		"raw UTF-8":            {func(r *signer.Request) { r.Path = "/ሴ" }, "path"},
		"empty segment":        {func(r *signer.Request) { r.Path = "/api//v1" }, "path"},
		"leading double slash": {func(r *signer.Request) { r.Path = "//api" }, "path"},
		"dot segment":          {func(r *signer.Request) { r.Path = "/api/../v1" }, "path"},
		"final dot":            {func(r *signer.Request) { r.Path = "/api/." }, "path"},
		"encoded dots":         {func(r *signer.Request) { r.Path = "/api/%2e%2E/v1" }, "path"},
		"half-encoded dots":    {func(r *signer.Request) { r.Path = "/api/.%2e" }, "path"},
		"no authority":         {func(r *signer.Request) { r.Authority = "" }, "authority"},
		"user in authority":    {func(r *signer.Request) { r.Authority = "a@b" }, "authority"},
		"no body hash":         {func(r *signer.Request) { r.ContentSHA256 = "" }, "body"},
		"upper-case body hash": {func(r *signer.Request) { r.ContentSHA256 = strings.Repeat("A", 64) }, "body"},
		"streaming payload":    {func(r *signer.Request) { r.ContentSHA256 = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" }, "body"},
		"two users":            {func(r *signer.Request) { r.Header["Impersonate-User"] = []string{"a", "b"} }, "header Impersonate-User"},
		"comma in group":       {func(r *signer.Request) { r.Header["Impersonate-Group"] = []string{"a,system:masters"} }, "header Impersonate-Group"},
		"spaces in user":       {func(r *signer.Request) { r.Header["Impersonate-User"] = []string{"a  b"} }, "header Impersonate-User"},
		"Unicode space":        {func(r *signer.Request) { r.Header["Impersonate-User"] = []string{"admin\u00a0"} }, "header Impersonate-User"},
		"two cases":            {func(r *signer.Request) { r.Header["impersonate-user"] = []string{"admin"} }, "header Impersonate-User"},
		"newline":              {func(r *signer.Request) { r.Header["X-A"] = []string{"a\nb"} }, "header X-A"},
		"bad name":             {func(r *signer.Request) { r.Header["X A"] = []string{"a"} }, "header"},
		"bad length":           {func(r *signer.Request) { r.Header["Content-Length"] = []string{"-1"} }, "header Content-Length"},
		"two lengths":          {func(r *signer.Request) { r.Header["Content-Length"] = []string{"1", "1"} }, "header Content-Length"},
		"bad method":           {func(r *signer.Request) { r.Method = "GET /" }, "method"},
	} {
		r := testRequest()
		tc.change(r)
		fields, err := newSigner(t).SignRequest(t.Context(), r)
		var refused *signer.RequestError
		if !errors.As(err, &refused) || refused.Field != tc.field || fields != nil {
			t.Errorf("%s: got %v, %v, want an error about %s", name, fields, err, tc.field)
		}
		if name == "two cases" {
			continue // a list of fields is in one case
		}
		if _, err2 := signFields(t, newSigner(t), r); fmt.Sprint(err2) != fmt.Sprint(err) {
			t.Errorf("%s: SignFields: %v, want %v", name, err2, err)
		}
	}
}

// TestSignsOddPathsAsSent: where it was asked for, and for S3, odd paths are signed exactly.
func TestSignsOddPathsAsSent(t *testing.T) {
	for _, path := range []string{"//", "/a//b", "/a/../b", "/./", "/a/%2e%2e/b", "/a%2Fb", "/a;b=c/d", "/:@&=+$,!*'()", "/%E1%88%B4", "/{a}|\\^`<>\"[]"} {
		for _, service := range []string{"eks", "s3"} {
			s := newSigner(t, func(o *Options) { o.Path, o.Service = PathExact, service })
			v := testVerifier()
			v.Path, v.Service, v.SingleEncode = PathExact, service, service == "s3"
			r := testRequest()
			r.Path = path
			sent := signed(t, s, r)
			if _, err := v.Verify(sent); err != nil {
				t.Errorf("%s %s: %v", service, path, err)
			}
			sent.Path += "/"
			if _, err := v.Verify(sent); !errors.Is(err, ErrSignature) {
				t.Errorf("%s %s: a changed path: %v", service, path, err)
			}
		}
	}
}

func TestNormalize(t *testing.T) {
	for path, want := range map[string]string{
		"/": "/", "//": "/", "/.": "/", "/..": "/", "/../..": "/", "/a": "/a", "/a/": "/a/", "/a//": "/a/",
		"/a/.": "/a/", "/a/b/..": "/a/", "/a/../b": "/b", "/a/./b//c": "/a/b/c", "/...": "/...", "/a%2Fb/..": "/",
	} {
		if got := normalize(path); got != want {
			t.Errorf("normalize(%s) = %s, want %s", path, got, want)
		}
	}
}

// TestAuthorityAsSent: the SDK would make "::1" of "[::1]:443" and drop default ports.
func TestAuthorityAsSent(t *testing.T) {
	for _, authority := range []string{"[::1]:6443", "[::1]:443", "[::1]", "[fe80::1%25eth0]:443", "host:443", "host", "HOST:6443", "127.0.0.1:443"} {
		r := testRequest()
		r.Authority = authority
		sent := signed(t, newSigner(t), r)
		if _, err := testVerifier().Verify(sent); err != nil {
			t.Errorf("%s: %v", authority, err)
		}
		sent.Authority = "::1"
		if _, err := testVerifier().Verify(sent); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: another authority: %v", authority, err)
		}
	}
}

// rotating hands out whatever it is set to.
type rotating struct {
	mu    sync.Mutex
	creds aws.Credentials
	err   error
}

func (p *rotating) set(c aws.Credentials, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.creds, p.err = c, err
}

func (p *rotating) Retrieve(context.Context) (aws.Credentials, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.creds, p.err
}

// TestSecretRotates: another secret under the same id must be used at once, not at midnight.
func TestSecretRotates(t *testing.T) {
	p := &rotating{}
	s := newSigner(t, func(o *Options) { o.Credentials = p })
	for _, secret := range []string{"one", "two", "one"} {
		p.set(aws.Credentials{AccessKeyID: testID, SecretAccessKey: secret}, nil)
		v := testVerifier()
		v.Lookup = func(_, date, region, service string) ([]byte, Identity, error) {
			return DeriveKey(secret, date, region, service), Identity{}, nil
		}
		if _, err := v.Verify(signed(t, s, testRequest())); err != nil {
			t.Errorf("secret %s: %v", secret, err)
		}
	}
}

func TestDayChanges(t *testing.T) {
	now := time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC)
	s := newSigner(t, func(o *Options) { o.Clock = func() time.Time { return now } })
	v := testVerifier()
	v.Clock = func() time.Time { return now }
	for range 3 {
		if _, err := v.Verify(signed(t, s, testRequest())); err != nil {
			t.Error(err)
		}
		now = now.Add(time.Second).In(time.FixedZone("far", 13*3600))
	}
}

func TestSessionToken(t *testing.T) {
	r := testRequest()
	r.Header.Set(fieldToken, "the client's own")
	sent := signed(t, newSigner(t), r)
	if got := sent.Header[fieldToken]; !slices.Equal(got, []string{testToken}) {
		t.Errorf("token %q, want ours alone", got)
	}
	// Without a token of our own the client's would go out unsigned, or signed as ours.
	plain := newSigner(t, func(o *Options) { o.Credentials = credentials.NewStaticCredentialsProvider(testID, testSecret, "") })
	var refused *signer.RequestError
	if _, err := plain.SignRequest(t.Context(), r); !errors.As(err, &refused) {
		t.Errorf("a foreign token: %v", err)
	}
	// Sent, not signed.
	s := newSigner(t, func(o *Options) { o.UnsignedSessionToken = true })
	sent = signed(t, s, testRequest())
	if sent.Header.Get(fieldToken) != testToken || strings.Contains(sent.Header.Get(fieldAuthorization), "security-token") {
		t.Errorf("unsigned token: %v", sent.Header)
	}
}

func TestCredentialsFail(t *testing.T) {
	p := &rotating{}
	s := newSigner(t, func(o *Options) { o.Credentials = p })
	for want, set := range map[string]struct {
		creds aws.Credentials
		err   error
	}{
		"the vault is shut": {err: errors.New("the vault is shut")},
		"gave none":         {creds: aws.Credentials{AccessKeyID: testID}},
		"have expired":      {creds: aws.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, CanExpire: true, Expires: testTime}},
	} {
		p.set(set.creds, set.err)
		_, err := s.SignRequest(t.Context(), testRequest())
		var unavailable *CredentialsError
		if !errors.As(err, &unavailable) || unavailable.StatusCode() != http.StatusServiceUnavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a CredentialsError: %s", err, want)
		}
		if strings.Contains(fmt.Sprintf("%+v %v", err, s), testSecret) {
			t.Errorf("%v shows the secret", err)
		}
	}
}

// TestPrinted: no way of printing shows a secret.
func TestPrinted(t *testing.T) {
	c := NewCredentials(credentials.NewStaticCredentialsProvider(testID, testSecret, testToken), CacheOptions{})
	if _, err := c.Retrieve(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{newSigner(t), c} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			if s := fmt.Sprintf(verb, v); strings.Contains(s, "canary") {
				t.Errorf("%T with %s: %s", v, verb, s)
			}
		}
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		if strings.Contains(log.String(), "canary") {
			t.Errorf("%T: %s", v, &log)
		}
	}
}

func TestUnsignedPayload(t *testing.T) {
	s := newSigner(t, func(o *Options) { o.OmitContentSHA256 = true })
	r := testRequest()
	if sent := signed(t, s, r); sent.Header.Get(fieldSHA256) != "" {
		t.Errorf("sent %s, want none", sent.Header.Get(fieldSHA256))
	}
	// A verifier that did not hash must not take the body for signed, nor for deliberately unsigned.
	unhashed := signed(t, s, r)
	unhashed.ContentSHA256 = signer.UnsignedPayload
	for _, allowed := range []bool{false, true} {
		v := testVerifier()
		v.UnsignedPayload = allowed
		if _, err := v.Verify(unhashed); !errors.Is(err, ErrBody) {
			t.Errorf("a signed body that was not hashed, unsigned allowed %t: %v", allowed, err)
		}
	}
	r.ContentSHA256 = signer.UnsignedPayload
	sent := signed(t, s, r)
	if got := sent.Header.Get(fieldSHA256); got != signer.UnsignedPayload {
		t.Errorf("sent %q, want %s", got, signer.UnsignedPayload)
	}
	v := testVerifier()
	if _, err := v.Verify(sent); !errors.Is(err, ErrBody) {
		t.Errorf("unsigned payload, not allowed: %v", err)
	}
	v.UnsignedPayload = true
	if _, err := v.Verify(sent); err != nil {
		t.Error(err)
	}
	sent.ContentSHA256 = hashOf("any body at all")
	if _, err := v.Verify(sent); err != nil {
		t.Error(err)
	}
}

// TestConcurrent is for the race detector: one signer, secrets that rotate, a clock that is corrected.
func TestConcurrent(t *testing.T) {
	p := &rotating{}
	p.set(testCredentials, nil)
	s := newSigner(t, func(o *Options) { o.Credentials = p })
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				r := testRequest()
				r.RawQuery = fmt.Sprintf("i=%d&j=%d", i, j)
				if _, err := testVerifier().Verify(signed(t, s, r)); err != nil {
					t.Error(err)
					return
				}
				p.set(testCredentials, nil)
				s.ObserveResponse(200, http.Header{"Date": {testTime.Format(http.TimeFormat)}}, testTime)
			}
		})
	}
	wg.Wait()
}
