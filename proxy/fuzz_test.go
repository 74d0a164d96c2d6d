package proxy

import (
	"bufio"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
)

// capturing is a way out that keeps the bytes that net/http would write.
type capturing struct{ wire string }

func (c *capturing) RoundTrip(r *http.Request) (*http.Response, error) {
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		return nil, err
	}
	c.wire = b.String()
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, ContentLength: 0}, nil
}

// FuzzTarget: what is taken leaves as it came, in the bytes that are written.
func FuzzTarget(f *testing.F) {
	for _, s := range keptTargets {
		f.Add(s, "")
		f.Add(s, "/base/%2f")
		f.Add("/base/%2f"+s, "/base/%2f")
	}
	f.Add("https://evil/x?y", "")
	f.Add("/%zz", "")
	f.Fuzz(func(t *testing.T, raw, base string) {
		u, err := url.Parse("https://server" + base)
		if err != nil {
			return
		}
		var way capturing
		p, err := New(Options{Server: u, Transport: &way})
		if err != nil {
			return
		}
		tg, err := parseTarget(raw, p.base, true)
		if err != nil {
			return
		}
		out := &http.Request{Method: "GET", URL: tg.url("https", "server"), Host: "server", Header: http.Header{"User-Agent": nil}}
		if _, err := way.RoundTrip(out); err != nil {
			return // net/http would not write it: 502, and nothing is sent
		}
		line, rest, _ := strings.Cut(way.wire, "\r\n")
		origin := raw
		if !strings.HasPrefix(raw, "/") {
			var ok bool
			if origin, ok = cutAuthority(raw); !ok {
				t.Fatalf("%q was taken", raw)
			}
			if !strings.HasPrefix(origin, "/") {
				origin = "/" + origin
			}
		}
		path, _, _ := strings.Cut(origin, "?")
		base = p.base
		if path == base || strings.HasPrefix(path, base+"/") {
			base = "" // the client has said it
		}
		if line != "GET "+base+origin+" HTTP/1.1" || rest != "Host: server\r\n\r\n" {
			t.Errorf("%q with base %q was written as %q", raw, p.base, way.wire)
		}
	})
}

// FuzzRequest: a whole request as net/http reads it. What goes out is what came
// in, less the policy; nothing that the policy names goes out, in no spelling.
func FuzzRequest(f *testing.F) {
	for _, s := range slices.Concat(strippedFields, keptFields) {
		f.Add("GET", "/api?x=1", s)
	}
	f.Add("POST", "//a%2f", "Connection: a, X-B\r\nX-b: 1\r\nA: 2")
	f.Add("DELETE", "/x?;", "X__Remote__User: a\r\nProxy_Authorization: b\r\nAUTHORIZATION: c")
	var way capturing
	p, err := New(Options{Server: &url.URL{Scheme: "https", Host: "server"}, Transport: &way, ForeignAuthorization: Reject,
		Sign: func(_ ctx, r *Request) (http.Header, error) { return http.Header{"X-Amz-Date": {"ours"}}, nil }})
	if err != nil {
		f.Fatal(err)
	}
	forbidden := []string{"x-amz-", "x-remote-", "x-forwarded-", "proxy-", "signature", "authorization", "via", "forwarded", "cookie", "connection", "upgrade", "te"}
	f.Fuzz(func(t *testing.T, method, target, fields string) {
		in, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n\r\n")))
		if err != nil || in.ContentLength != 0 {
			return
		}
		for name := range in.Header {
			if !httpguts.ValidHeaderFieldName(name) {
				return // net/http's server refuses it
			}
		}
		way.wire = ""
		x := exchange{p: p, w: discard{}, r: in, ctx: in.Context()}
		if err := x.run(); err != nil {
			return
		}
		head, err := textproto.NewReader(bufio.NewReader(strings.NewReader(way.wire[strings.Index(way.wire, "\r\n")+2:]))).ReadMIMEHeader()
		if err != nil && err != io.EOF {
			t.Fatalf("went out as %q: %v", way.wire, err)
		}
		out := http.Header(head)
		if !slices.Equal(out["X-Amz-Date"], []string{"ours"}) || !slices.Equal(out["Host"], []string{"server"}) {
			t.Errorf("went out as %q", way.wire)
		}
		delete(out, "X-Amz-Date")
		delete(out, "Host")
		delete(out, "Content-Length") // of a POST without a body
		hops := in.Header["Connection"]
		for name, values := range out {
			plain := strings.ReplaceAll(strings.ToLower(name), "_", "-")
			for _, bad := range forbidden {
				if plain == bad && bad != "te" || strings.HasSuffix(bad, "-") && strings.HasPrefix(plain, bad) {
					t.Errorf("%q goes out in %q", name, way.wire)
				}
			}
			if hasToken(hops, name) && name != "Te" {
				t.Errorf("%q is hop by hop, and goes out in %q", name, way.wire)
			}
			if name != "User-Agent" && name != "Te" && !slices.Equal(values, in.Header[name]) {
				t.Errorf("%q came as %q and goes out as %q", name, in.Header[name], values)
			}
		}
		// And nothing is lost that the policy does not name.
		for name := range maps.Keys(in.Header) {
			if p.rules.of(name) != drop && !hasToken(hops, name) && out[name] == nil && name != "User-Agent" {
				t.Errorf("%q is lost in %q", name, way.wire)
			}
		}
	})
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
func (discard) FlushError() error           { return nil }
