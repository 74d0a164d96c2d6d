package sigv4

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// TestVerifyRefuses changes one thing about a signed request, or about who looks at it.
func TestVerifyRefuses(t *testing.T) {
	var request *signer.RequestError
	authorization := func(old, new string) func(*signer.Request) {
		return func(r *signer.Request) {
			r.Header.Set(fieldAuthorization, strings.Replace(r.Header.Get(fieldAuthorization), old, new, 1))
		}
	}
	set := func(name string, values ...string) func(*signer.Request) {
		return func(r *signer.Request) { r.Header[name] = values }
	}
	for name, tc := range map[string]struct {
		change func(*signer.Request)
		want   error // nil: a *signer.RequestError
	}{
		"method":                     {func(r *signer.Request) { r.Method = "DELETE" }, ErrSignature},
		"path":                       {func(r *signer.Request) { r.Path += "x" }, ErrSignature},
		"path, decoded":              {func(r *signer.Request) { r.Path = strings.Replace(r.Path, "%2F", "/", 1) }, ErrSignature},
		"path, encoded":              {func(r *signer.Request) { r.Path = strings.Replace(r.Path, ":", "%3A", 1) }, ErrSignature},
		"path, not canonical":        {func(r *signer.Request) { r.Path = "/" + r.Path }, nil},
		"query value":                {func(r *signer.Request) { r.RawQuery = strings.Replace(r.RawQuery, "ls", "rm", 1) }, ErrSignature},
		"query added":                {func(r *signer.Request) { r.RawQuery += "&force" }, ErrSignature},
		"query removed":              {func(r *signer.Request) { r.RawQuery = "" }, ErrSignature},
		"query semicolon":            {func(r *signer.Request) { r.RawQuery += ";force" }, nil},
		"authority":                  {func(r *signer.Request) { r.Authority = "other" }, ErrSignature},
		"no authority":               {func(r *signer.Request) { r.Authority = "" }, ErrAmbiguous},
		"field value":                {set("Impersonate-User", "admin"), ErrSignature},
		"field removed":              {func(r *signer.Request) { delete(r.Header, "Impersonate-User") }, ErrSignature},
		"field added":                {set("Impersonate-Uid", "0"), ErrUnsigned},
		"extra added":                {set("Impersonate-Extra-Scopes", "all"), ErrUnsigned},
		"field added, lower case":    {set("impersonate-uid", "0"), ErrUnsigned},
		"user twice":                 {set("Impersonate-User", "CN=jane doe,OU=dev", "admin"), ErrAmbiguous},
		"user split at its comma":    {set("Impersonate-User", "CN=jane doe", "OU=dev"), ErrAmbiguous},
		"user with another space":    {set("Impersonate-User", "CN=jane  doe,OU=dev"), ErrAmbiguous},
		"user with a Unicode space":  {set("Impersonate-User", "CN=jane doe,OU=dev\u00a0"), ErrAmbiguous},
		"user in two cases":          {set("impersonate-user", "admin"), nil},
		"groups joined":              {set("Impersonate-Group", "dev,ops"), ErrAmbiguous},
		"content type added":         {set("Content-Encoding", "gzip"), ErrUnsigned},
		"x-amz added":                {set("X-Amz-Meta-A", "1"), ErrUnsigned},
		"body":                       {func(r *signer.Request) { r.ContentSHA256 = hashOf("other") }, ErrBody},
		"body not hashed":            {func(r *signer.Request) { r.ContentSHA256 = "" }, ErrBody},
		"body not looked at":         {func(r *signer.Request) { r.ContentSHA256 = signer.UnsignedPayload }, ErrBody},
		"claims unsigned payload":    {set(fieldSHA256, signer.UnsignedPayload), ErrBody},
		"payload hash twice":         {set(fieldSHA256, hashOf("body"), hashOf("body")), ErrAmbiguous},
		"target":                     {set(TargetHeader, hashOf("/")), ErrUnsigned},
		"no authorization":           {func(r *signer.Request) { delete(r.Header, fieldAuthorization) }, ErrNoSignature},
		"bearer":                     {set(fieldAuthorization, "Bearer x"), ErrNoSignature},
		"two authorizations":         {func(r *signer.Request) { r.Header.Add(fieldAuthorization, r.Header.Get(fieldAuthorization)) }, ErrAmbiguous},
		"authorization in two cases": {set("authorization", "Bearer x"), nil},
		"long authorization":         {authorization("Credential=", "Credential="+strings.Repeat("x", maxAuthorization)), ErrMalformed},
		"unknown key":                {authorization("AKIDTEST", "AKIDOTHER"), ErrUnknownKey},
		"unprintable key id":         {authorization("AKIDTEST", "AKID\x01"), ErrMalformed},
		"no key id":                  {authorization("AKIDTEST", ""), ErrMalformed},
		"region":                     {authorization("eu-central-1", "us-east-1"), ErrScope},
		"service":                    {authorization("/eks/", "/sts/"), ErrScope},
		"day":                        {authorization("/20260901/", "/20260902/"), ErrScope},
		"terminator":                 {authorization("aws4_request", "aws4a_request"), ErrMalformed},
		"extra part":                 {authorization("Credential=", "X=y, Credential="), ErrMalformed},
		"part twice":                 {authorization("SignedHeaders=", "SignedHeaders=host, SignedHeaders="), ErrMalformed},
		"part missing":               {set(fieldAuthorization, algorithm+" Credential=a/b/c/d/aws4_request"), ErrMalformed},
		"unsorted names":             {authorization("accept;audit-id", "audit-id;accept"), ErrMalformed},
		"name twice":                 {authorization("accept;", "accept;accept;"), ErrMalformed},
		"upper-case name":            {authorization("accept;", "Accept;"), ErrMalformed},
		"empty name":                 {authorization("accept;", ";accept;"), ErrMalformed},
		"too many names":             {authorization("accept;", strings.Repeat("a;", maxSignedFields)), ErrMalformed},
		"signed field missing":       {authorization("accept;", "accept;accept-x;"), ErrSignature},
		"host not signed":            {authorization("host;", ""), ErrUnsigned},
		"date not signed":            {authorization(";x-amz-date", ""), ErrUnsigned},
		"token not signed":           {authorization(";x-amz-security-token", ""), ErrUnsigned},
		"user not signed":            {authorization(";impersonate-user", ""), ErrUnsigned},
		"type not signed":            {authorization("content-type;", ""), ErrUnsigned},
		"accept not signed":          {authorization("accept;", ""), ErrSignature},
		"short signature":            {func(r *signer.Request) { s := r.Header[fieldAuthorization]; s[0] = s[0][:len(s[0])-2] }, ErrMalformed},
		"upper-case signature":       {authorization("Signature=", "Signature=A"), ErrMalformed},
		"date":                       {set(fieldDate, "20260901T120001Z"), ErrSignature},
		"date, another form":         {set(fieldDate, "2026-09-01T12:00:00Z"), ErrMalformed},
		"no date":                    {func(r *signer.Request) { delete(r.Header, fieldDate) }, ErrMalformed},
		"date twice":                 {func(r *signer.Request) { r.Header.Add(fieldDate, r.Header.Get(fieldDate)) }, ErrMalformed},
		"token":                      {set(fieldToken, "another"), ErrSignature},
	} {
		r := signed(t, newSigner(t), testRequest())
		if _, err := testVerifier().Verify(r); err != nil {
			t.Fatalf("before the change: %v", err)
		}
		for k, values := range r.Header { // the changes below must not reach the signer's own
			r.Header[k] = append([]string(nil), values...)
		}
		tc.change(r)
		id, err := testVerifier().Verify(r)
		if tc.want == nil && !errors.As(err, &request) || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if id.User != "" || id.AccessKeyID != "" {
			t.Errorf("%s: refused, and named %+v", name, id)
		}
	}
}

func TestVerifyTime(t *testing.T) {
	r := signed(t, newSigner(t), testRequest())
	for _, tc := range []struct {
		after  time.Duration
		window time.Duration
		ok     bool
	}{
		{0, 0, true}, {5 * time.Minute, 0, true}, {-5 * time.Minute, 0, true},
		{5*time.Minute + 1, 0, false}, {-5*time.Minute - 1, 0, false},
		{10 * time.Minute, time.Hour, true}, {2 * time.Second, time.Second, false},
	} {
		v := testVerifier()
		v.Window, v.Clock = tc.window, at(testTime.Add(tc.after))
		_, err := v.Verify(r)
		var skew *SkewError
		switch {
		case tc.ok && err != nil:
			t.Errorf("after %s: %v", tc.after, err)
		case !tc.ok && !errors.As(err, &skew):
			t.Errorf("after %s: %v, want a SkewError", tc.after, err)
		case !tc.ok && skew.Skew() != -tc.after:
			t.Errorf("after %s: skew %s", tc.after, skew.Skew())
		}
	}
	v := testVerifier()
	v.Clock = at(testTime.Add(10*time.Minute + 3*time.Second))
	_, err := v.Verify(r)
	want := "verify signature: clock skew: signed at 2026-09-01T12:00:00Z, 10m3s behind this server's 2026-09-01T12:10:03Z, allowed are 5m0s: " +
		"set the clock of the signing machine, or send the request sooner after signing it"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestBindTarget shows what plain SigV4 leaves open, and that the bound target closes it.
func TestBindTarget(t *testing.T) {
	for name, change := range map[string]func(*signer.Request){
		"order of repeated keys": func(r *signer.Request) {
			r.RawQuery = strings.Replace(r.RawQuery, "ls&command=-la", "-la&command=ls", 1)
		},
		"encoding":   func(r *signer.Request) { r.RawQuery = strings.Replace(r.RawQuery, "/tmp", "%2ftmp", 1) },
		"plus":       func(r *signer.Request) { r.RawQuery = strings.Replace(r.RawQuery, "+", "%20", 1) },
		"empty pair": func(r *signer.Request) { r.RawQuery += "&" },
	} {
		plain := signed(t, newSigner(t), testRequest())
		bound := signed(t, newSigner(t, func(o *Options) { o.BindTarget = true }), testRequest())
		v := testVerifier()
		if _, err := v.Verify(bound); err != nil {
			t.Fatal(err)
		}
		change(plain)
		change(bound)
		if _, err := v.Verify(plain); err != nil {
			t.Errorf("%s: plain SigV4 refuses it: the docs say otherwise: %v", name, err)
		}
		if _, err := v.Verify(bound); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v, want ErrSignature", name, err)
		}
		v.RequireTarget = true
		if _, err := v.Verify(plain); !errors.Is(err, ErrUnsigned) {
			t.Errorf("%s: without a target: %v, want ErrUnsigned", name, err)
		}
	}
}

func TestVerifierOptions(t *testing.T) {
	r := signed(t, newSigner(t), testRequest())
	r.Header.Set("X-Late", "added on the way")
	v := testVerifier()
	if _, err := v.Verify(r); err != nil {
		t.Errorf("a field nobody relies on: %v", err)
	}
	v.RequireSigned = []string{"X-Late", "X-Absent"}
	if _, err := v.Verify(r); !errors.Is(err, ErrUnsigned) {
		t.Errorf("RequireSigned: %v", err)
	}
	v = testVerifier()
	v.CheckSessionToken = func(id Identity, token string) error {
		if id.User != "jane" || token != testToken {
			t.Errorf("asked about %+v, %q", id, token)
		}
		return errors.New("revoked " + token)
	}
	if _, err := v.Verify(r); !errors.Is(err, ErrToken) || strings.Contains(err.Error(), testToken) {
		t.Errorf("CheckSessionToken: %v", err)
	}
	v = testVerifier()
	v.Lookup = func(string, string, string, string) ([]byte, Identity, error) {
		return nil, Identity{}, io.ErrUnexpectedEOF
	}
	if _, err := v.Verify(r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Lookup: %v", err)
	}
	v.Lookup = func(string, string, string, string) ([]byte, Identity, error) { return nil, Identity{User: "x"}, nil }
	if _, err := v.Verify(r); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("an empty key: %v", err)
	}
	if _, err := new(Verifier).Verify(r); err == nil {
		t.Error("the zero Verifier accepts")
	}
}

func TestReplay(t *testing.T) {
	now := testTime
	v := testVerifier()
	v.Clock = func() time.Time { return now }
	v.Replay = NewReplayCache(2)
	request := func(method, query string) *signer.Request {
		r := testRequest()
		r.Method, r.RawQuery = method, query
		return signed(t, newSigner(t, func(o *Options) { o.Clock = v.Clock }), r)
	}
	first := request("POST", "a")
	if _, err := v.Verify(first); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(first); !errors.Is(err, ErrReplayed) {
		t.Errorf("again: %v", err)
	}
	for range 2 { // within a second two equal GETs have one signature
		if _, err := v.Verify(request("GET", "a")); err != nil {
			t.Errorf("GET: %v", err)
		}
	}
	if _, err := v.Verify(request("POST", "b")); err != nil {
		t.Error(err)
	}
	var full interface{ StatusCode() int }
	if _, err := v.Verify(request("POST", "c")); !errors.Is(err, ErrReplayFull) || !errors.As(err, &full) || full.StatusCode() != 429 {
		t.Errorf("full: %v", err)
	}
	now = now.Add(DefaultWindow)
	if _, err := v.Verify(first); !errors.Is(err, ErrReplayed) {
		t.Errorf("in the last moment: %v", err)
	}
	now = now.Add(time.Second)
	if _, err := v.Verify(request("POST", "c")); err != nil {
		t.Errorf("after the window: %v", err)
	}
	if _, err := v.Verify(first); err == nil {
		t.Error("accepted after its window")
	}
}

// TestPresigned: signatures in the query, beside what the suite has.
func TestPresigned(t *testing.T) {
	const base = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDTEST%2F20260901%2Feu-central-1%2Feks%2Faws4_request" +
		"&X-Amz-Date=20260901T120000Z&X-Amz-Expires=600&X-Amz-SignedHeaders=host"
	sign := func(query string) *signer.Request {
		r := &signer.Request{Method: "GET", Authority: "host", Path: "/", RawQuery: query, ContentSHA256: signer.EmptySHA256}
		form := canonical{method: "GET", path: "/", query: canonicalQuery(pairs(query)), names: []string{"host"},
			fields: map[string][]string{"host": {"host"}}, payload: signer.EmptySHA256}
		s := scope{"20260901", "eu-central-1", "eks"}
		key := DeriveKey(testSecret, s.date, s.region, s.service)
		sum := hmacSHA256(key, stringToSign("20260901T120000Z", s, form.String()))
		r.RawQuery += "&X-Amz-Signature=" + hexOf(sum)
		return r
	}
	v := testVerifier()
	r := sign(base)
	if _, err := v.Verify(r); !errors.Is(err, ErrNoSignature) {
		t.Errorf("without the option: %v", err)
	}
	v.Presigned = true
	for _, tc := range []struct {
		query string
		after time.Duration
		want  error // nil: accepted
	}{
		{base, 0, nil},
		{base, 599 * time.Second, nil},
		{base, 600 * time.Second, errSkew},
		{base, -6 * time.Minute, errSkew},
		{strings.Replace(base, "600", "604801", 1), 0, ErrMalformed},
		{strings.Replace(base, "600", "0", 1), 0, ErrMalformed},
		{strings.Replace(base, "600", "-1", 1), 0, ErrMalformed},
		{base + "&X-Amz-Expires=60000", 0, ErrMalformed},
		{base + "&X-Amz-Security-Token=", 0, ErrMalformed},
		{strings.Replace(base, "SHA256", "SHA1", 1), 0, ErrMalformed},
		{strings.Replace(base, "=host", "=accept", 1), 0, ErrUnsigned},
	} {
		v.Clock = at(testTime.Add(tc.after))
		_, err := v.Verify(sign(tc.query))
		var skew *SkewError
		switch {
		case tc.want == nil && err != nil, tc.want == errSkew && !errors.As(err, &skew),
			tc.want != nil && tc.want != errSkew && !errors.Is(err, tc.want):
			t.Errorf("%s after %s: %v, want %v", tc.query, tc.after, err, tc.want)
		}
	}
	v.Clock = at(testTime)
	r.RawQuery += "&a=b"
	if _, err := v.Verify(r); !errors.Is(err, ErrSignature) {
		t.Errorf("another parameter: %v", err)
	}
	r = sign(base)
	r.Header = http.Header{fieldAuthorization: {"Bearer x"}}
	if _, err := v.Verify(r); !errors.Is(err, ErrAmbiguous) {
		t.Errorf("two signatures: %v", err)
	}
}

var errSkew = errors.New("a SkewError")

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, 2*len(b))
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
}

// TestOverTheWire signs, sends through net/http, and verifies what a real server got, over
// HTTP/1.1 and HTTP/2.
func TestOverTheWire(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s := newSigner(t, func(o *Options) { o.BindTarget = true; o.Clock = nil })
		v := testVerifier()
		v.Clock, v.RequireTarget = nil, true
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			view, err := signer.FromReceived(r, hashOf(string(body)))
			if err == nil {
				_, err = v.Verify(view)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusUnauthorized)
			}
		}))
		server.EnableHTTP2 = http2
		server.StartTLS()
		for _, path := range []string{"/", "/a%2Fb:c/x@y", "/a?command=ls&command=-la&command=/tmp&x=a+b%20c"} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+path, strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header["Impersonate-Group"] = []string{"a", "b"}
			fields, err := s.SignRequest(t.Context(), &signer.Request{
				Method: "POST", Scheme: "https", Authority: req.URL.Host, Path: req.URL.EscapedPath(),
				RawQuery: req.URL.RawQuery, Header: req.Header, ContentSHA256: hashOf("body"),
			})
			if err != nil {
				t.Fatal(err)
			}
			for name, values := range fields {
				req.Header[name] = values
			}
			resp, err := server.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			answer, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK || http2 != (resp.ProtoMajor == 2) {
				t.Errorf("%s: %s %s: %s", path, resp.Proto, resp.Status, answer)
			}
		}
		server.Close()
	}
}
