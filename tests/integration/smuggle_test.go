//go:build linux

package integration

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// recorder is an API server that answers with what it was asked. /refuse... and
// upgrades get 403, /redirect sends elsewhere.
type recorder struct {
	elsewhere string

	mu       sync.Mutex
	requests []seen
}

func (u *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	u.mu.Lock()
	u.requests = append(u.requests, seen{method: r.Method, target: r.RequestURI, proto: r.Proto, host: r.Host, header: r.Header.Clone(), hash: string(body)})
	u.mu.Unlock()
	switch {
	case strings.HasPrefix(r.URL.Path, "/redirect"):
		w.Header().Set("Location", u.elsewhere+"/stolen")
		w.WriteHeader(http.StatusFound)
	case r.Header.Get("Upgrade") != "":
		http.Error(w, "no", http.StatusForbidden)
	default:
		_, _ = io.WriteString(w, r.RequestURI)
	}
}

// of returns the requests whose target contains a text.
func (u *recorder) of(text string) (n []seen) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.requests {
		if strings.Contains(s.target, text) {
			n = append(n, s)
		}
	}
	return n
}

// start serves it over HTTP/2, or HTTP/1.1 alone.
func (u *recorder) start(t *testing.T, http2 bool) string {
	t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "recorder", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	s := httptest.NewUnstartedServer(u)
	s.EnableHTTP2 = http2
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// trap is an address that nobody may dial.
type trap struct {
	url  string
	hits atomic.Int64
}

func newTrap(t *testing.T) *trap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p := &trap{url: "http://" + l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.hits.Add(1)
			_ = conn.Close()
		}
	}()
	return p
}

// smuggling is what is sent, byte for byte. CASE, HOST, TRAP and HIDDEN are
// replaced: the last is a whole request, LENGTH its length and HEX the same in
// hexadecimal.
var smuggling = []struct{ name, raw string }{
	{"nothing wrong", "GET CASE HTTP/1.1\r\nHost: HOST\r\n\r\n"},
	{"nothing wrong, body", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: LENGTH\r\n\r\nHIDDEN"},
	{"length and chunks, hidden in the chunk", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nHEX\r\nHIDDEN\r\n0\r\n\r\n"},
	{"length and chunks, hidden behind", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5LENGTH\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHIDDEN"},
	{"chunks and length, hidden behind", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 5LENGTH\r\n\r\n0\r\n\r\nHIDDEN"},
	{"two lengths", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nContent-Length: LENGTH\r\n\r\nHIDDEN"},
	{"two lengths, other order", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: LENGTH\r\nContent-Length: 0\r\n\r\nHIDDEN"},
	{"the same length twice", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: LENGTH\r\nContent-Length: LENGTH\r\n\r\nHIDDEN"},
	{"list of lengths", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0, LENGTH\r\n\r\nHIDDEN"},
	{"length with sign", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: +0\r\n\r\nHIDDEN"},
	{"negative length", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\nHIDDEN"},
	{"hexadecimal length", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0x0\r\n\r\nHIDDEN"},
	{"huge length", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: 18446744073709551616\r\n\r\nHIDDEN"},
	{"empty length", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length:\r\n\r\nHIDDEN"},
	{"space before colon, length", "POST CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length : LENGTH\r\n\r\nHIDDEN"},
	{"space before colon, chunks", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\nContent-Length: 5LENGTH\r\n\r\n0\r\n\r\nHIDDEN"},
	{"unknown coding", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nHIDDEN"},
	{"identity", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: identity\r\nContent-Length: 0\r\n\r\nHIDDEN"},
	{"chunked, identity", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\nHIDDEN"},
	{"gzip, chunked", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\nHIDDEN"},
	{"two codings", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\nHIDDEN"},
	{"coding behind a vertical tab", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\nHIDDEN"},
	{"coding with a parameter", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\nHIDDEN"},
	{"folded coding", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\r\n chunked\r\nContent-Length: 5LENGTH\r\n\r\n0\r\n\r\nHIDDEN"},
	{"folded field", "POST CASE HTTP/1.1\r\nHost: HOST\r\nX-Fold: a\r\n Content-Length: 0\r\nContent-Length: LENGTH\r\n\r\nHIDDEN"},
	{"folded first field", "POST CASE HTTP/1.1\r\n Content-Length: 0\r\nHost: HOST\r\nContent-Length: LENGTH\r\n\r\nHIDDEN"},
	{"chunks in HTTP/1.0", "POST CASE HTTP/1.0\r\nHost: HOST\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHIDDEN"},
	{"chunk size that is no number", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\ng\r\nHIDDEN"},
	{"chunk size with 0x", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0x0\r\n\r\nHIDDEN"},
	{"negative chunk size", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nHIDDEN"},
	{"huge chunk size", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\nHIDDEN"},
	{"empty chunk size", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n\r\nHIDDEN"},
	{"chunk without an end", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcXX0\r\n\r\nHIDDEN"},
	{"chunk longer than it says", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\nHIDDEN"},
	{"bare LF in a chunk extension", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n3;\nxx\r\nabc\r\n0\r\n\r\n"},
	{"framing in the trailer", "POST CASE HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\nContent-Length: LENGTH\r\n\r\n"},
	{"bare LF all over", "GET CASE HTTP/1.1\nHost: HOST\n\n"},
	{"bare LF hides a length", "POST CASE HTTP/1.1\r\nHost: HOST\r\nX-Field: a\nContent-Length: LENGTH\r\n\r\nHIDDEN"},
	{"bare CR hides a length", "POST CASE HTTP/1.1\r\nHost: HOST\r\nX-Field: a\rContent-Length: 0\r\n\r\nHIDDEN"},
	{"NUL in a field", "POST CASE HTTP/1.1\r\nHost: HOST\r\nX-Field: a\x00b\r\n\r\nHIDDEN"},
	{"no field at all", "GET CASE HTTP/1.1\r\nHost: HOST\r\nHIDDEN"},
	{"length of a GET", "GET CASE HTTP/1.1\r\nHost: HOST\r\nContent-Length: LENGTH\r\n\r\nHIDDEN"},
	{"body before it is asked for", "POST CASE HTTP/1.1\r\nHost: HOST\r\nExpect: 100-continue\r\nContent-Length: LENGTH\r\n\r\nHIDDEN"},
	{"two hosts", "GET CASE HTTP/1.1\r\nHost: HOST\r\nHost: 127.0.0.1:1\r\n\r\nHIDDEN"},
	{"no host", "GET CASE HTTP/1.1\r\n\r\nHIDDEN"},
	{"host with a path", "GET CASE HTTP/1.1\r\nHost: HOST/path\r\n\r\n"},
	{"metadata host", "GET CASE HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"},
	{"metadata target", "GET http://169.254.169.254CASE HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"},
	{"metadata target, our host", "GET http://169.254.169.254CASE HTTP/1.1\r\nHost: HOST\r\n\r\n"},
	{"another local server's host", "GET CASE HTTP/1.1\r\nHost: TRAP\r\n\r\n"},
	{"another local server as target", "GET http://TRAPCASE HTTP/1.1\r\nHost: HOST\r\n\r\n"},
	{"target with user", "GET http://HOST@TRAPCASE HTTP/1.1\r\nHost: HOST\r\n\r\n"},
	{"target without a slash", "GET @TRAPCASE HTTP/1.1\r\nHost: HOST\r\n\r\n"},
	{"CONNECT", "CONNECT TRAP HTTP/1.1\r\nHost: TRAP\r\n\r\nHIDDEN"},
	{"CONNECT with a path", "CONNECT CASE HTTP/1.1\r\nHost: HOST\r\n\r\nHIDDEN"},
	{"TRACE", "TRACE CASE HTTP/1.1\r\nHost: HOST\r\nCookie: secret\r\n\r\nHIDDEN"},
	{"four words in the request line", "GET CASE HTTP/1.1 HTTP/1.1\r\nHost: HOST\r\n\r\nHIDDEN"},
	{"tabs in the request line", "GET\tCASE\tHTTP/1.1\r\nHost: HOST\r\n\r\nHIDDEN"},
	{"HTTP/2 in the clear", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nHIDDEN"},
	{"HTTP/0.9", "GET CASE\r\nHIDDEN"},
}

// TestSmuggling: whatever the client's bytes are, they are one request upstream
// at most, at the one server; a request that they hide is never one.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]struct{ http2, sigv4 bool }{"h2": {true, false}, "http1": {false, false}, "sigv4": {true, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, elsewhere := newHome(t), newTrap(t)
			u := &recorder{elsewhere: elsewhere.url}
			url := u.start(t, way.http2)
			var s *server
			if way.sigv4 {
				s = h.serve(h.sigv4Flags(url)...)
			} else {
				s = h.serveJane(url)
			}
			passed := 0
			for i, c := range smuggling {
				passed += u.try(t, s, elsewhere, fmt.Sprintf("%s-%d", name, i), c.name, c.raw)
			}
			t.Logf("%d of %d passed as one request, the others not at all", passed, len(smuggling))
			if passed < 2 {
				t.Error("not even good requests pass: this shows nothing")
			}
			// The listener has survived it all.
			get(t, s.http2(t), s.listen+"/version")
			if n := elsewhere.hits.Load(); n != 0 {
				t.Errorf("another server was dialled %d times", n)
			}
		})
	}
}

// try sends one case and returns how many requests came of it.
func (u *recorder) try(t *testing.T, s *server, elsewhere *trap, id, name, raw string) int {
	t.Helper()
	hidden := "GET /hidden-" + id + "x HTTP/1.1\r\nHost: " + s.address() + "\r\n\r\n"
	raw = strings.NewReplacer(
		"CASE", "/case-"+id+"x", "HOST", s.address(), "TRAP", strings.TrimPrefix(elsewhere.url, "http://"), "HIDDEN", hidden,
		"5LENGTH", fmt.Sprint(5+len(hidden)), "LENGTH", fmt.Sprint(len(hidden)), "HEX", fmt.Sprintf("%x", len(hidden)),
	).Replace(raw)
	conn := s.dial(t, "http/1.1")
	defer func() { _ = conn.Close() }()
	must(t, conn.SetDeadline(time.Now().Add(8*time.Second)))
	if _, err := io.WriteString(conn, raw); err != nil {
		t.Errorf("%s: %v", name, err)
		return 0
	}
	// Everything is over when the connection is, or when a request that is sent
	// behind it on the same connection is answered.
	r := bufio.NewReader(conn)
	var codes []int
	for sent := false; len(codes) < 5; {
		resp, err := http.ReadResponse(r, nil)
		if isTimeout(err) {
			t.Errorf("%s: neither answered nor cut; answers so far: %v", name, codes)
		}
		if err != nil {
			break
		}
		body, err := io.ReadAll(resp.Body)
		if sent && string(body) == "/last-"+id+"x" {
			break
		}
		if codes = append(codes, resp.StatusCode); err != nil || resp.Close {
			break
		}
		if !sent {
			sent = true
			if _, err := fmt.Fprintf(conn, "GET /last-%sx HTTP/1.1\r\nHost: %s\r\n\r\n", id, s.address()); err != nil {
				break
			}
		}
	}
	got := u.of("/case-" + id + "x")
	if n := u.of("/hidden-" + id + "x"); len(n) > 0 {
		t.Errorf("%s: the hidden request reached the server: %+v; answers %v", name, n, codes)
	}
	switch {
	case len(got) > 1:
		t.Errorf("%s: %d requests reached the server", name, len(got))
	case len(got) == 1:
		if body := got[0].hash; body != "" && body != hidden && body != "abc" {
			t.Errorf("%s: arrived with body %q", name, body)
		}
		if len(codes) == 0 || codes[0] >= 400 {
			t.Logf("%s: sent on and answered %v", name, codes)
		}
	case len(codes) > 0 && (codes[0] < 400 || codes[0] >= 500) && codes[0] != http.StatusNotImplemented: // of a transfer coding
		t.Errorf("%s: nothing reached the server, and the answer is %v", name, codes)
	}
	if strings.HasPrefix(name, "CONNECT") || name == "TRACE" {
		if len(got) > 0 || len(codes) == 0 || codes[0] != http.StatusMethodNotAllowed {
			t.Errorf("%s: answered %v, want 405", name, codes)
		}
	}
	return len(got)
}

// TestRedirect: a redirect is for the client to follow, or not.
func TestRedirect(t *testing.T) {
	t.Parallel()
	h, elsewhere := newHome(t), newTrap(t)
	u := &recorder{elsewhere: elsewhere.url}
	s := h.serveJane(u.start(t, true))
	client := s.http2(t)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		req, err := http.NewRequest(method, s.listen+"/redirect", strings.NewReader(""))
		must(t, err)
		resp, err := client.Do(req)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != elsewhere.url+"/stolen" {
			t.Errorf("%s: %s, Location %q; want the server's own redirect", method, resp.Status, resp.Header.Get("Location"))
		}
	}
	if n := elsewhere.hits.Load(); n != 0 || len(u.of("/")) != 2 {
		t.Errorf("the redirect was followed: %d times elsewhere; upstream: %+v", n, u.of("/"))
	}
}

// TestUpgradeRefused: an upgrade to HTTP/2 is not the server's to decide, and
// after one that failed no byte of the connection is read as a request.
func TestUpgradeRefused(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	u := &recorder{}
	s := h.serveJane(u.start(t, true))
	for name, protocol := range map[string]string{
		"h2c":       "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
		"unknown":   "Connection: upgrade\r\nUpgrade: teleport/1\r\n",
		"websocket": "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
		"spdy":      "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n",
	} {
		conn := s.dial(t, "http/1.1")
		_, err := fmt.Fprintf(conn, "GET /refuse-%s HTTP/1.1\r\nHost: %s\r\n%s\r\nGET /second-%s HTTP/1.1\r\nHost: %s\r\n\r\n",
			name, s.address(), protocol, name, s.address())
		must(t, err)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		must(t, err)
		if resp.StatusCode == http.StatusSwitchingProtocols || !resp.Close {
			t.Errorf("%s: answered %s, close: %v; want the connection closed", name, resp.Status, resp.Close)
		}
		if _, err := r.ReadByte(); err == nil || isTimeout(err) {
			t.Errorf("%s: the connection goes on: %v", name, err)
		}
		first := u.of("/refuse-" + name)
		if len(first) != 1 {
			t.Fatalf("%s: %d requests reached the server", name, len(first))
		}
		upgraded := first[0].header.Get("Upgrade") != "" || first[0].header.Get("Http2-Settings") != ""
		if kept := name == "websocket" || name == "spdy"; upgraded != kept {
			t.Errorf("%s: arrived as %v", name, first[0].header)
		}
		if n := u.of("/second-" + name); len(n) > 0 {
			t.Errorf("%s: what was sent behind the upgrade reached the server: %+v", name, n)
		}
	}
}
