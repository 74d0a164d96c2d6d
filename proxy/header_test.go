package proxy

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// seen runs one raw HTTP/1.1 request through a proxy, and gives what the
// server saw of its header.
func seen(t testing.TB, h2 bool, o Options, request string) http.Header {
	t.Helper()
	got := make(chan http.Header, 10)
	o.Server = upstream(t, h2, func(w http.ResponseWriter, r *http.Request) { got <- r.Header })
	o.Transport, o.Anonymous, o.AnonymousUpgrade = outbound(t, h2), outbound(t, h2), outbound(t, h2)
	f := start(t, o, false)
	if code := f.rawCode(t, request); code != 200 {
		t.Fatalf("status %d for %q", code, request)
	}
	return <-got
}

var strippedFields = []string{
	"Keep-Alive: 1", "Proxy-Connection: keep-alive", "Proxy-Authorization: Basic c2VjcmV0", "Proxy-Anything: 1",
	"TE: gzip", "Trailer: X", "Http2-Settings: AAA", "Cookie: session=1",
	"X-Remote-User: admin", "x-remote-group: system:masters", "X_Remote_User: admin", "X-Remote_Extra-Foo: 1", "X-REMOTE-UID: 0",
	"X-Amz-Date: 20200101T000000Z", "X-Amz-Security-Token: t", "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD", "x_amz_date: 1", "X-Amz-Target: y",
	"Signature: sig1=:AA==:", "Signature-Input: sig1=()", "Signature-Certificate: :AA==:", "X-K8s-Audience: a",
	"X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: evil", "X-Forwarded-Proto: http", "X_Forwarded_For: 1", "Forwarded: for=1.2.3.4", "Via: 1.1 evil",
	"X-Real-Ip: 1.2.3.4", "X_Real_IP: 1", "X-Original-Url: /x", "X-Rewrite-Url: /x", "X-Http-Method-Override: DELETE", "True-Client-Ip: 1",
	"Execproxy-Error: mine", "Authorization:", "Authorization:   ",
}

var keptFields = []string{
	"Impersonate-User: jane", "Impersonate-Group: a", "Impersonate-Extra-Scopes: view", "Impersonate-Uid: 7", "Accept: application/json, */*",
	"Accept-Encoding: zstd, gzip;q=0.5", "Content-Type: application/json", "Audit-Id: 5", "Traceparent: 00-1-2-01", "Origin: https://localhost",
	"X-Amzn-Trace-Id: Root=1", "Kubectl-Command: kubectl get", "X-Custom_Under: v", "Range: bytes=1-2", "If-Match: \"1\"", "User-Agent: kubectl/v1.36 (linux)",
	"Idempotency-Key: abc", "Content-Digest: sha-256=:AA==:", "Pragma: foo", "Warning: 199 -", "X-Signature: mine", "Viacom: 1",
}

func TestHeaderPolicy(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("upstream h2=%v", h2), func(t *testing.T) {
			all := strings.Join(slices.Concat(strippedFields, keptFields), "\r\n")
			var view http.Header
			got := seen(t, h2, Options{Sign: func(_ ctx, r *Request) (http.Header, error) { view = r.Header.Clone(); return nil, nil }},
				"GET / HTTP/1.1\r\nHost: x\r\n"+all+"\r\n\r\n")
			want := http.Header{}
			for _, f := range keptFields {
				name, value, _ := strings.Cut(f, ": ")
				want.Add(name, value)
			}
			if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
				t.Errorf("the server saw\n%v\nwant\n%v", got, want)
			}
			canon := http.Header{}
			for name, v := range view {
				canon[http.CanonicalHeaderKey(name)] = v
			}
			if !maps.EqualFunc(canon, want, slices.Equal[[]string]) {
				t.Errorf("the signer saw\n%v\nwant\n%v", view, want)
			}
		})
	}
}

func TestAbsentFieldsStayAbsent(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		if got := seen(t, h2, Options{}, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); len(got) != 0 {
			t.Errorf("h2=%v: the server saw %v", h2, got)
		}
	}
}

func TestConnectionCannotDeleteWhatIsSigned(t *testing.T) {
	sign := func(_ ctx, r *Request) (http.Header, error) {
		return http.Header{"Authorization": {"AWS4-HMAC-SHA256 ours"}, "X-Amz-Date": {"d"}, "x-amz-security-token": {"t"}, "Signature-Input": {"s"}, "Content-Digest": {"ours"}}, nil
	}
	for _, h2 := range []bool{false, true} {
		got := seen(t, h2, Options{Sign: sign}, "GET / HTTP/1.1\r\nHost: x\r\n"+
			"Connection: Authorization, x-amz-date,X-Amz-Security-Token,signature-input ,Content-Digest, X-Custom, Host, Content-Length\r\n"+
			"Connection: keep-alive\r\nX-Custom: hop\r\nContent-Digest: mine\r\nX-Amz-Date: mine\r\nX-Kept: 1\r\n\r\n")
		want := http.Header{"Authorization": {"AWS4-HMAC-SHA256 ours"}, "X-Amz-Date": {"d"}, "X-Amz-Security-Token": {"t"},
			"Signature-Input": {"s"}, "Content-Digest": {"ours"}, "X-Kept": {"1"}}
		if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Errorf("h2=%v: the server saw %v", h2, got)
		}
	}
}

func TestConnectionMustNotDropImpersonation(t *testing.T) {
	f := start(t, Options{Server: upstream(t, true, func(w http.ResponseWriter, r *http.Request) { t.Error("it was sent") })}, false)
	for _, name := range []string{"impersonate-user", "Impersonate-Extra-a"} {
		if code := f.rawCode(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: "+name+"\r\n"+name+": jane\r\n\r\n"); code != 400 {
			t.Errorf("%s: %d", name, code)
		}
	}
}

func TestSignedFieldsReplaceTheClients(t *testing.T) {
	var view *Request
	got := seen(t, true, Options{Sign: func(_ ctx, r *Request) (http.Header, error) {
		c := *r
		view = &c
		return http.Header{"content-type": {"ours"}, "X-Remote-User": {"static"}}, nil
	}}, "GET /a%2fb?x=1 HTTP/1.1\r\nHost: x\r\nContent-Type: theirs\r\nContent-Type: twice\r\n\r\n")
	if !slices.Equal(got["Content-Type"], []string{"ours"}) || got.Get("X-Remote-User") != "static" {
		t.Errorf("the server saw %v", got)
	}
	if view.Method != "GET" || view.Scheme != "https" || !strings.HasPrefix(view.Authority, "127.0.0.1:") || view.Path != "/a%2fb" || view.RawQuery != "x=1" || view.ContentSHA256 != "" {
		t.Errorf("the signer saw %+v", view)
	}
}

func TestSignerMustNotSetFraming(t *testing.T) {
	f := start(t, Options{Server: upstream(t, true, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }),
		Sign: func(ctx, *Request) (http.Header, error) { return http.Header{"content-length": {"7"}}, nil }}, false)
	res, err := f.client(t, true).Get("https://x/")
	wantStatus(t, res, err, 503, ReasonSigning)
}

func TestTETrailersPasses(t *testing.T) {
	got := seen(t, true, Options{}, "GET / HTTP/1.1\r\nHost: x\r\nConnection: TE\r\nTE: trailers, deflate;q=0.5\r\n\r\n")
	if !slices.Equal(got["Te"], []string{"trailers"}) {
		t.Errorf("the server saw %v", got)
	}
}

func TestResponseHeader(t *testing.T) {
	u := upstream(t, false, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for name, v := range map[string]string{"Connection": "X-Hop", "X-Hop": "1", "Keep-Alive": "1", "Proxy-Authenticate": "Basic",
			"Upgrade": "h2c", "Alt-Svc": `h3=":443"`, ErrorHeader: "Forged", "Audit-Id": "7", "Retry-After": "3", "Warning": `299 - "x"`} {
			h.Set(name, v)
		}
		h["Date"], h["Content-Type"] = nil, nil
		w.WriteHeader(418)
		_, _ = w.Write([]byte("<html>"))
	})
	f := start(t, Options{Server: u, Transport: outbound(t, false)}, false)
	for _, h2 := range []bool{false, true} {
		res := get(t, f.client(t, h2), "https://x/")
		body2s(t, res)
		res.Header.Del("Content-Length")
		want := http.Header{"Audit-Id": {"7"}, "Retry-After": {"3"}, "Warning": {`299 - "x"`}}
		if res.StatusCode != 418 || !maps.EqualFunc(res.Header, want, slices.Equal[[]string]) {
			t.Errorf("h2=%v: the client saw %d %v", h2, res.StatusCode, res.Header)
		}
	}
}

func TestRedirectIsPassedOn(t *testing.T) {
	hits := make(chan string, 10)
	u := upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		hits <- r.URL.Path
		w.Header().Set("Location", "https://evil.test/steal")
		w.WriteHeader(307)
	})
	f := start(t, Options{Server: u}, false)
	res := get(t, f.client(t, true), "https://x/a")
	if body2s(t, res); res.StatusCode != 307 || res.Header.Get("Location") != "https://evil.test/steal" || len(hits) != 1 {
		t.Errorf("got %d %v after %d requests", res.StatusCode, res.Header, len(hits))
	}
}

func BenchmarkRequestHeader(b *testing.B) {
	r := newRules(&Options{})
	in := http.Header{"Accept": {"application/json"}, "Accept-Encoding": {"gzip"}, "User-Agent": {"kubectl"}, "Kubectl-Command": {"get"},
		"Kubectl-Session": {"5"}, "Content-Type": {"application/json"}, "Audit-Id": {"7"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.requestHeader(in, false); err != nil {
			b.Fatal(err)
		}
	}
}

// A kubeconfig's disable-compression holds for clients that do not see it.
func TestDisableCompression(t *testing.T) {
	for disable, want := range map[bool]string{false: "gzip", true: ""} {
		got := seen(t, false, Options{DisableCompression: disable}, "GET / HTTP/1.1\r\nHost: x\r\naccept-encoding: gzip\r\nAccept: */*\r\n\r\n")
		if got.Get("Accept-Encoding") != want || got.Get("Accept") != "*/*" {
			t.Errorf("disabled %v: the server saw %v", disable, got)
		}
	}
}
