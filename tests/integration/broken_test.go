//go:build linux

package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// brokenAnswers are what an API server, or what calls itself one, sends over
// HTTP/1.1. BIG is a lot of header.
var brokenAnswers = []struct {
	name, raw string
	body      string // what the client may take for the whole body; "-": nothing
}{
	{"nothing wrong", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc"},
	{"nothing wrong, chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"},
	{"nothing", "", "-"},
	{"no HTTP", "220 mail.example.com ESMTP\r\n", "-"},
	{"half a status line", "HTTP/1.1 20", "-"},
	{"half a header", "HTTP/1.1 200 OK\r\nContent-Le", "-"},
	{"status that is no number", "HTTP/1.1 abc OK\r\nContent-Length: 3\r\n\r\nabc", "-"},
	{"status 99", "HTTP/1.1 099 What\r\nContent-Length: 3\r\n\r\nabc", "-"},
	{"switching that nobody asked for", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nabc", "-"},
	{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 2\r\n\r\nabc", "-"},
	{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc", "-"},
	{"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"},
	{"unknown coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: rot13\r\n\r\nabc", "-"},
	{"body cut short", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "-"},
	{"chunks cut short", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "-"},
	{"chunk cut short", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc", "-"},
	{"chunk size that is no number", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nxyz\r\n", "-"},
	{"chunk longer than it says", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n", "-"},
	{"endless header", "HTTP/1.1 200 OK\r\nBIG\r\n", "-"},
	{"endless hints", "BIG1HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "-"},
	{"a second answer behind", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON", "abc"},
}

// TestBrokenUpstream: what is no whole answer is none for the client either, and
// nobody gets what was sent to somebody else.
func TestBrokenUpstream(t *testing.T) {
	t.Parallel()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "broken", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	big := strings.NewReplacer(
		"BIG1", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 1<<20),
		"BIG", strings.Repeat("X-Filler: "+strings.Repeat("x", 1000)+"\r\n", 32<<10))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				r := bufio.NewReader(conn)
				for {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					var i int
					if _, err := fmt.Sscanf(req.URL.Path, "/answer/%d", &i); err != nil {
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n")
						continue
					}
					_, _ = io.WriteString(conn, big.Replace(brokenAnswers[i].raw))
					if brokenAnswers[i].body == "-" {
						return
					}
				}
			}()
		}
	}()
	h := newHome(t)
	s := h.serveJane("https://" + l.Addr().String())
	before := memoryOf(t, s.cmd.Process.Pid, "VmRSS")
	for protocol, client := range map[string]*http.Client{"h2": s.http2(t), "http1": s.http1(t)} {
		for i, a := range brokenAnswers {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/answer/%d", s.listen, i), nil)
			must(t, err)
			var body []byte
			resp, err := client.Do(req)
			if err == nil {
				body, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			cancel()
			switch {
			case isTimeout(err):
				t.Errorf("%s, %s: no end", protocol, a.name)
			case a.body != "-" && (err != nil || resp.StatusCode != http.StatusOK || string(body) != a.body):
				t.Errorf("%s, %s: %q, %v; want %q", protocol, a.name, body, err, a.body)
			case a.body != "-" || err != nil: // cut, as it was
			case resp.StatusCode < 500 || resp.Header.Get("Execproxy-Error") == "":
				t.Errorf("%s, %s: answered %s %q, want 502 of ours or a cut", protocol, a.name, resp.Status, body)
			}
			if text := get(t, client, s.listen+"/version"); text != "{}\n" {
				t.Errorf("%s: the request after %q got %q", protocol, a.name, text)
			}
		}
	}
	peak := memoryOf(t, s.cmd.Process.Pid, "VmHWM")
	t.Logf("memory %s before, %s at its peak", mib(before), mib(peak))
	if peak > before+bound(128<<20) {
		t.Errorf("memory grew from %s to %s", mib(before), mib(peak))
	}
}
