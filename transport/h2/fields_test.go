package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

func TestRequestFields(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(r *http.Request)
		want   string // sorted; ! stands before what HPACK's table never gets
	}{
		"plain":  {func(*http.Request) {}, ":authority=api.test :method=GET :path=/a :scheme=https"},
		"opaque": {func(r *http.Request) { r.URL = &url.URL{Scheme: "https", Host: "x", Opaque: "/a%2f/../é"} }, ":authority=api.test :method=GET :path=/a%2f/../é :scheme=https"},
		"query": {func(r *http.Request) {
			r.URL = &url.URL{Scheme: "https", Opaque: "/a", RawQuery: "q=%20&&b", ForceQuery: true}
		}, "!:path=/a?q=%20&&b :authority=api.test :method=GET :scheme=https"},
		"empty query": {func(r *http.Request) { r.URL = &url.URL{Scheme: "https", Opaque: "/a", ForceQuery: true} }, "!:path=/a? :authority=api.test :method=GET :scheme=https"},
		"two slashes": {func(r *http.Request) { r.URL = &url.URL{Scheme: "https", Host: "x", Path: "//a/b", RawPath: "//a%2Fb"} }, ":authority=api.test :method=GET :path=//a%2Fb :scheme=https"},
		"an opaque with two slashes": {func(r *http.Request) {
			r.URL = &url.URL{Scheme: "https", Opaque: "//api.test/b"}
		}, ":authority=api.test :method=GET :path=/b :scheme=https"},
		"options":  {func(r *http.Request) { r.Method, r.URL = "OPTIONS", &url.URL{Scheme: "https", Opaque: "*"} }, ":authority=api.test :method=OPTIONS :path=* :scheme=https"},
		"punycode": {func(r *http.Request) { r.Host = "bücher.test:443" }, ":authority=xn--bcher-kva.test:443 :method=GET :path=/a :scheme=https"},
		"zone":     {func(r *http.Request) { r.Host = "[fe80::1%eth0]:443" }, ":authority=[fe80::1]:443 :method=GET :path=/a :scheme=https"},
		"host":     {func(r *http.Request) { r.Host, r.Header = "", http.Header{"Host": {"evil"}} }, ":authority=url.test :method=GET :path=/a :scheme=https"},
		"agent":    {func(r *http.Request) { r.Header = http.Header{"User-Agent": {"k", "l"}} }, ":authority=api.test :method=GET :path=/a :scheme=https user-agent=k"},
		"no agent": {func(r *http.Request) { r.Header = http.Header{"User-Agent": nil} }, ":authority=api.test :method=GET :path=/a :scheme=https"},
		"hop by hop": {func(r *http.Request) {
			r.Header = http.Header{"Connection": {"close"}, "Keep-Alive": {"1"}, "Proxy-Connection": {"x"}, "Transfer-Encoding": {"chunked"},
				"Te": {"gzip, trailers"}, "Trailer": {"X"}, "Content-Length": {"7"}, "Expect": {"100-continue"}}
		}, ":authority=api.test :method=GET :path=/a :scheme=https expect=100-continue te=trailers"},
		"another TE": {func(r *http.Request) { r.Header = http.Header{"Te": {"gzip"}} }, ":authority=api.test :method=GET :path=/a :scheme=https"},
		"secrets": {func(r *http.Request) {
			r.Header = http.Header{"Authorization": {"Bearer x"}, "Cookie": {"a=b; c=d;e=f", ""}, "X-Amz-Date": {"now"}, "X-Amz-Security-Token": {"token"}, "X-Amz-Content-Sha256": {"sum"}}
		}, "!authorization=Bearer x !cookie=a=b !cookie=c=d !cookie=e=f !x-amz-date=now :authority=api.test :method=GET :path=/a :scheme=https x-amz-content-sha256=sum x-amz-security-token=token"},
		"another payload each time": {func(r *http.Request) {
			r.Method, r.Body, r.ContentLength = "POST", io.NopCloser(strings.NewReader("x")), 1
			r.Header = http.Header{"X-Amz-Content-Sha256": {"sum"}}
		}, "!x-amz-content-sha256=sum :authority=api.test :method=POST :path=/a :scheme=https content-length=1"},
		"two values":   {func(r *http.Request) { r.Header = http.Header{"X-Odd": {"a", ""}} }, ":authority=api.test :method=GET :path=/a :scheme=https x-odd= x-odd=a"},
		"no method":    {func(r *http.Request) { r.Method = "" }, ":authority=api.test :method=GET :path=/a :scheme=https"},
		"empty POST":   {func(r *http.Request) { r.Method = "POST" }, ":authority=api.test :method=POST :path=/a :scheme=https content-length=0"},
		"NoBody":       {func(r *http.Request) { r.Method, r.Body, r.ContentLength = "PATCH", http.NoBody, -1 }, ":authority=api.test :method=PATCH :path=/a :scheme=https content-length=0"},
		"empty DELETE": {func(r *http.Request) { r.Method = "DELETE" }, ":authority=api.test :method=DELETE :path=/a :scheme=https"},
		"unknown":      {func(r *http.Request) { r.Method, r.Body = "POST", io.NopCloser(strings.NewReader("x")) }, ":authority=api.test :method=POST :path=/a :scheme=https"},
		"trailer": {func(r *http.Request) {
			r.Method, r.Body, r.Trailer = "POST", io.NopCloser(strings.NewReader("x")), http.Header{"B": nil, "A-B": nil}
		}, ":authority=api.test :method=POST :path=/a :scheme=https trailer=A-B,B"},
	} {
		r := newRequest(t, context.Background(), "GET", "/a", nil)
		r.URL.Host, r.Host = "url.test", "api.test"
		tt.change(r)
		fields, err := requestFields(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if why := check(*fields, request); why != "" {
			t.Errorf("%s: our own connections would refuse it: %s", name, why)
		}
		var got []string
		for _, f := range *fields {
			s := f.Name + "=" + f.Value
			if f.Sensitive {
				s = "!" + s
			}
			got = append(got, s)
		}
		slices.Sort(got)
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: got\n%s, want\n%s", name, got, tt.want)
		}
		putFields(fields)
	}
}

// What is wrong with the request itself begins with "http2: ", holds no value that may
// be a secret, and is never sent.
func TestRequestsThatAreNotValid(t *testing.T) {
	t.Parallel()
	c, wait := script(t, Options{}, func(s *scripted) {
		_ = s.WriteSettings(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 4096})
		if f := s.next(); f != nil && f.Header().Type != http2.FrameGoAway {
			t.Errorf("the server got %v", f.Header())
		}
	})
	if err := c.Ping(context.Background()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(r *http.Request){
		"no URL":             func(r *http.Request) { r.URL = nil },
		"host":               func(r *http.Request) { r.Host = "a b" },
		"path":               func(r *http.Request) { r.URL = &url.URL{Scheme: "https", Opaque: "a"} },
		"path with a return": func(r *http.Request) { r.URL = &url.URL{Scheme: "https", Opaque: "/a\r\nb"} },
		"method":             func(r *http.Request) { r.Method = "GE T" },
		"CONNECT":            func(r *http.Request) { r.Method = "CONNECT" },
		"upgrade":            func(r *http.Request) { r.Header.Set("Upgrade", "websocket") },
		"transfer encoding":  func(r *http.Request) { r.Header["Transfer-Encoding"] = []string{"gzip", "chunked"} },
		"connection":         func(r *http.Request) { r.Header.Set("Connection", "Upgrade") },
		"name":               func(r *http.Request) { r.Header["A b"] = []string{"x"} },
		"pseudo name":        func(r *http.Request) { r.Header[":path"] = []string{"x"} },
		"value":              func(r *http.Request) { r.Header.Set("X", "pin-2718\n") },
		"trailer's key":      func(r *http.Request) { r.Trailer = http.Header{"Content-Length": nil} },
		"trailer's name":     func(r *http.Request) { r.Trailer = http.Header{"A b": nil} },
		"too large":          func(r *http.Request) { r.Header.Set("X", strings.Repeat("pin-2718", 512)) },
	} {
		body := &endless{Reader: strings.NewReader("x"), closed: make(chan struct{})}
		r := newRequest(t, context.Background(), "POST", "/", body)
		change(r)
		_, err := send(t, c, r)
		if err == nil || !strings.HasPrefix(err.Error(), "http2: ") || strings.ContainsAny(err.Error(), "\r\n") || strings.Contains(err.Error(), "pin-2718") {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-body.closed:
		default:
			t.Errorf("%s: the body is not closed", name)
		}
	}
	none(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := send(t, c, newRequest(t, ctx, "GET", "/", nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	none(t, c)
	wait()
	if c.Reserve() {
		t.Error("a stream of a closed connection was reserved")
	}
}
