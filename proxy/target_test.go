package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

var keptTargets = []string{
	"/", "/?", "/??", "/api/v1/pods?", "/api/v1/pods", "/a//b", "//a/b", "///", "//", "/a%2fb%2F", "//a%2fb",
	"/a/../b/./c", "/..", "/../../etc", "/a%2e%2e/%2e", "/apis/a.b/v1:c/d:e", "/a;b;c?x;y=1;z",
	"/exec?command=ls&command=-la&command=/tmp", "/x?b=2&a=1&b=1", "/x?a=%zz&b=%", "/x?q=a+b%20c", "/x?a=b?c=/d//e",
	"/x?labelSelector=a%3Db%2Cc%21%3Dd", "/a'b(c)*!$&,=@~", "/a\\b|c^d`e{f}\"<>", "/\xc3\xa9?\xc3\xa9=\xff", "/x?fieldSelector=metadata.name=a",
	"/api/v1/namespaces/default/services/https:foo:443/proxy/", "/%E2%98%83/%00%0d%0a",
	"/x?" + strings.Repeat("labelSelector=a&", 10_500) + "end=1",
}

// capture gives a raw upstream and a function that waits for the next target.
func capture(t testing.TB, h2 bool) (*url.URL, func() string) {
	if !h2 {
		u, heads := rawHTTP1(t)
		return u, func() string {
			line, _, _ := strings.Cut(<-heads, "\r\n")
			_, line, _ = strings.Cut(line, " ")
			return strings.TrimSuffix(line, " HTTP/1.1")
		}
	}
	paths := make(chan string, 1000)
	u := rawHTTP2(t, func(c *h2conn) {
		for f := c.next(); f != nil; f = c.next() {
			if h, ok := f.(*http2.MetaHeadersFrame); ok {
				paths <- h.PseudoValue("path")
				c.answer(h.StreamID, true, ":status", "200")
			}
		}
	})
	return u, func() string { return <-paths }
}

func TestTargetReachesTheServerByteForByte(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("upstream h2=%v", h2), func(t *testing.T) {
			u, next := capture(t, h2)
			var signed string
			f := start(t, Options{Server: u, Transport: outbound(t, h2), Sign: func(_ ctx, r *Request) (http.Header, error) {
				signed = r.Path
				if r.RawQuery != "" {
					signed += "?" + r.RawQuery
				}
				return nil, nil
			}}, false)
			c, r := f.raw(t, "")
			for _, target := range keptTargets {
				fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", target)
				res, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatalf("%.60q: %v", target, err)
				}
				if body2s(t, res); res.StatusCode != 200 {
					t.Errorf("%.60q: %d", target, res.StatusCode)
					continue
				}
				if got := next(); got != target {
					t.Errorf("sent %.60q, the server saw %.60q", target, got)
				}
				if want := strings.TrimSuffix(target, "?"); signed != want && signed != target {
					t.Errorf("sent %.60q, signed %.60q", target, signed)
				}
			}
		})
	}
}

func TestTargetOverHTTP2(t *testing.T) {
	u, next := capture(t, true)
	f := start(t, Options{Server: u}, false)
	h := newH2Client(t, f)
	for _, target := range keptTargets {
		if len(target) > 10_000 {
			continue // one frame
		}
		if code := h.get(target); code != "200" {
			t.Errorf("%.60q: %s", target, code)
			continue
		}
		if got := next(); got != target {
			t.Errorf("sent %.60q, the server saw %.60q", target, got)
		}
	}
	// Go's server takes a space and an absolute URL from :path.
	for _, target := range []string{"/a b", "https://169.254.169.254/latest", "/a#b", "x:y", "*"} {
		if code := h.get(target); code != "400" {
			t.Errorf("%q: %s, want 400", target, code)
		}
	}
}

func TestTargetRefused(t *testing.T) {
	u, _ := rawHTTP1(t)
	f := start(t, Options{Server: u}, false)
	for _, target := range []string{
		"/%zz", "/a%2", "/a%", "//a\"b", "//a\xffb", "/a#b", "*", "foo", "ftp://h/x", "https:///x", "https://u:p@h/x", "https:/x", "://x", "/a\tb",
	} {
		if code := f.rawCode(t, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n"); code != 400 {
			t.Errorf("%q: %d, want 400", target, code)
		}
	}
	if n := f.Stats().Requests; n == 0 {
		t.Error("no request reached the handler: the table tests net/http alone")
	}
}

func TestForeignHostsDoNotChooseWhereWeDial(t *testing.T) {
	u, heads := rawHTTP1(t)
	f := start(t, Options{Server: u, Transport: outbound(t, false)}, false)
	for sent, want := range map[string]string{
		"GET https://169.254.169.254/latest?x=1 HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n": "GET /latest?x=1 HTTP/1.1\r\nHost: " + u.Host + "\r\n",
		"GET http://evil.test?x HTTP/1.1\r\nHost: evil.test\r\n\r\n":                       "GET /?x HTTP/1.1\r\nHost: " + u.Host + "\r\n",
		"GET HTTPS://evil.test HTTP/1.1\r\nHost: good.test\r\n\r\n":                        "GET / HTTP/1.1\r\nHost: " + u.Host + "\r\n",
		"GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n":                                       "GET /a HTTP/1.1\r\nHost: " + u.Host + "\r\n",
	} {
		if code := f.rawCode(t, sent); code != 200 {
			t.Errorf("%q: %d", sent, code)
		} else if got := <-heads; !strings.HasPrefix(got, want) {
			t.Errorf("%q went out as %q", sent, got)
		}
	}
}

func TestBasePath(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		u, next := capture(t, h2)
		u = u.JoinPath("/k8s/c%2f1/")
		f := start(t, Options{Server: u, Transport: outbound(t, h2)}, false)
		for target, want := range map[string]string{"/api": "/k8s/c%2f1/api", "//x": "/k8s/c%2f1//x", "/": "/k8s/c%2f1/", "/?a": "/k8s/c%2f1/?a"} {
			if code := f.rawCode(t, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n"); code != 200 {
				t.Errorf("%q: %d", target, code)
			} else if got := next(); got != want {
				t.Errorf("%q went out as %q, want %q", target, got, want)
			}
		}
		for _, target := range []string{"/../c2", "/a/%2e%2E/b", "/.", "/a%2f..%2fb", "/..\\b", "/a/.."} {
			if code := f.rawCode(t, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n"); code != 400 {
				t.Errorf("%q: %d, want 400", target, code)
			}
		}
	}
}

// A webhook's server is all path, and its client says the whole of it. Nothing
// beside the base path is reached either way.
func TestBasePathIsSaid(t *testing.T) {
	for _, tt := range []struct{ base, target, want string }{
		{"/authenticate", "/authenticate?timeout=30s", "/authenticate?timeout=30s"},
		{"/authenticate", "/authenticate/", "/authenticate/"},
		{"/authenticate", "/?timeout=30s", "/authenticate/?timeout=30s"},
		{"/authenticate", "/authenticated", "/authenticate/authenticated"},
		{"/k8s/clusters/c-1", "/api/v1/pods", "/k8s/clusters/c-1/api/v1/pods"},
		{"/k8s/clusters/c-1", "/k8s/clusters/c-1/api/v1/pods", "/k8s/clusters/c-1/api/v1/pods"},
		{"/k8s/clusters/c-1", "/k8s/clusters/c-2/api", "/k8s/clusters/c-1/k8s/clusters/c-2/api"},
		{"/k8s/clusters/c-1", "/k8s/clusters/c-1/../c-2/api", ""},
		{"/k8s/clusters/c-1", "/k8s/clusters/c-1%2f../c-2/api", ""},
		{"/k8s/clusters/c-1", "/k8s/clusters/c-1%2f..%2fc-2/api", ""},
		{"/a%2fb", "/a/b/c", "/a%2fb/a/b/c"},
		{"/a%2fb", "/a%2fb/c", "/a%2fb/c"},
		{"", "//authenticate", "//authenticate"},
	} {
		u, next := capture(t, false)
		u = u.JoinPath()
		u.Path, u.RawPath = "", tt.base
		u.Path, _ = url.PathUnescape(tt.base)
		f := start(t, Options{Server: u, Transport: outbound(t, false)}, false)
		code := f.rawCode(t, "GET "+tt.target+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if tt.want == "" {
			if code != 400 {
				t.Errorf("%q behind %q: %d, want 400", tt.target, tt.base, code)
			}
			continue
		}
		if got := next(); got != tt.want {
			t.Errorf("%q behind %q was sent as %q, want %q", tt.target, tt.base, got, tt.want)
		}
	}
}

func TestServerMustBeHTTPS(t *testing.T) {
	tr := outbound(t, true)
	for server, want := range map[string]string{
		"http://a":            "is not https",
		"https://":            "no server",
		"https://u:secret@a/": "more than host",
		"https://a/?x":        "more than host",
		"https://a//b":        "",
		"https://a/b/../c":    "cannot be put before",
		"unix:///run/x":       "no server",
	} {
		u, err := url.Parse(server)
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(Options{Server: u, Transport: tr})
		if want == "" && strings.HasPrefix(u.Path, "//") {
			want = "cannot be put before"
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v, want one with %q", server, err, want)
		}
	}
	if _, err := New(Options{Transport: tr}); err == nil {
		t.Error("no server, no error")
	}
	if _, err := New(Options{Server: &url.URL{Scheme: "https", Host: "a"}}); err == nil {
		t.Error("no transport, no error")
	}
}

func TestAuthorityIsWhatIsSent(t *testing.T) {
	for host, want := range map[string]string{"[fe80::1%25eth0]:6443": "[fe80::1]:6443", "bücher.test:1": "xn--bcher-kva.test:1", "[::1]": "[::1]", "A.test": "A.test"} {
		u, err := url.Parse("https://" + host)
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(Options{Server: u, Transport: outbound(t, true)})
		if err != nil || p.authority != want {
			t.Errorf("%s: %v, %v", host, p, err)
		}
	}
}
