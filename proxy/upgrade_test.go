package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// switching is an API server that upgrades: it answers 101 and then speaks
// as serve does.
func switching(t testing.TB, serve func(c net.Conn, r *bufio.Reader)) (*url.URL, <-chan http.Header) {
	heads := make(chan http.Header, 100)
	u := upstream(t, false, func(w http.ResponseWriter, r *http.Request) {
		h := r.Header.Clone()
		h.Set("X-Test-Uri", r.RequestURI)
		heads <- h
		c, brw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n",
			r.Header.Get("Upgrade"))
		serve(c, brw.Reader)
	})
	return u, heads
}

const handshake = "GET /api/v1/namespaces/a/pods/b/exec?command=ls&command=-la&command=/tmp HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\n" +
	"Upgrade: %s\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"

// read101 checks the head of a 101.
func read101(t testing.TB, r *bufio.Reader) http.Header {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 101 || res.Status != "101 Switching Protocols" {
		t.Fatalf("%v, %v", res, err)
	}
	return res.Header
}

func echo(c net.Conn, r *bufio.Reader) {
	_, _ = io.Copy(c, r)
	if tc, ok := c.(*tls.Conn); ok {
		_ = tc.CloseWrite()
	}
}

func TestUpgrade(t *testing.T) {
	for _, protocol := range []string{"websocket", "SPDY/3.1", "WebSocket"} {
		u, heads := switching(t, echo)
		var view *Request
		f := start(t, Options{Server: u, HashBody: true, Sign: func(_ ctx, r *Request) (http.Header, error) {
			view = r
			return http.Header{"Authorization": {"ours"}}, nil
		}}, false)
		c, r := f.raw(t, fmt.Sprintf(handshake, protocol)+"early")
		h := read101(t, r)
		if h.Get("Upgrade") != protocol || h.Get("Connection") != "Upgrade" || h.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" || h.Get("X-Stream-Protocol-Version") == "" || h.Get("Date") != "" {
			t.Errorf("101 with %v", h)
		}
		sent := <-heads
		if sent.Get("X-Test-Uri") != "/api/v1/namespaces/a/pods/b/exec?command=ls&command=-la&command=/tmp" || sent.Get("Authorization") != "ours" ||
			sent.Get("Connection") != "Upgrade" || sent.Get("Upgrade") != protocol || sent.Get("Sec-WebSocket-Key") == "" || sent.Get("Sec-Websocket-Protocol") != "v5.channel.k8s.io" {
			t.Errorf("the server saw %v", sent)
		}
		if view.ContentSHA256 != emptySHA256 || view.RawQuery != "command=ls&command=-la&command=/tmp" {
			t.Errorf("signed %+v", view)
		}
		want := append([]byte("early"), bytes.Repeat([]byte("0123456789abcdef"), 20_000)...)
		go func() {
			_, _ = c.Write(want[5:])
			_ = c.CloseWrite() // half-close: what was sent still comes back
		}()
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes came back, %v, want %d", protocol, len(got), err, len(want))
		}
		if s := f.Stats(); s.Upgrades != 1 {
			t.Errorf("%+v", s)
		}
	}
}

func TestUpgradedBytesAreNotHeldBack(t *testing.T) {
	u, _ := switching(t, echo)
	f := start(t, Options{Server: u}, false)
	c, r := f.raw(t, fmt.Sprintf(handshake, "websocket"))
	read101(t, r)
	for _, s := range []string{"a", "bc", "def"} {
		fmt.Fprint(c, s)
		got := make([]byte, len(s))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != s {
			t.Fatal(string(got), err)
		}
	}
	if n := f.Stats().OpenUpgrades; n != 1 {
		t.Errorf("%d open", n)
	}
}

func TestCloseCutsUpgraded(t *testing.T) {
	over := make(chan struct{}, 1)
	u, _ := switching(t, func(c net.Conn, r *bufio.Reader) {
		_, _ = io.Copy(io.Discard, r)
		over <- struct{}{}
	})
	f := start(t, Options{Server: u}, false)
	_, r := f.raw(t, fmt.Sprintf(handshake, "SPDY/3.1"))
	read101(t, r)
	begun := time.Now()
	f.Close()
	if _, err := r.ReadByte(); err == nil {
		t.Error("the client's connection is open")
	}
	<-over
	if d := time.Since(begun); d > time.Second {
		t.Errorf("took %v", d)
	}
}

func TestEndOfOneSideEndsTheOther(t *testing.T) {
	over := make(chan struct{}, 1)
	u, _ := switching(t, func(c net.Conn, r *bufio.Reader) {
		_, _ = io.Copy(io.Discard, r)
		over <- struct{}{}
	})
	f := start(t, Options{Server: u}, false)
	// The client's process is killed: no goodbye.
	c, r := f.raw(t, fmt.Sprintf(handshake, "websocket"))
	read101(t, r)
	c.NetConn().Close()
	<-over

	u, _ = switching(t, func(c net.Conn, r *bufio.Reader) {})
	f = start(t, Options{Server: u}, false)
	_, r = f.raw(t, fmt.Sprintf(handshake, "websocket"))
	read101(t, r)
	if _, err := r.ReadByte(); err == nil {
		t.Error("the client's connection is open")
	}
}

func TestUnknownUpgradesAreNotForwarded(t *testing.T) {
	heads := make(chan http.Header, 10)
	u := upstream(t, true, func(w http.ResponseWriter, r *http.Request) { heads <- r.Header })
	f := start(t, Options{Server: u}, false)
	for _, fields := range []string{
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
		"Connection: Upgrade\r\nUpgrade: TLS/1.0, HTTP/1.1",
		"Connection: Upgrade\r\nUpgrade: websocket, h2c",
		"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c",
		"Connection: Upgrade",
	} {
		_, r := f.raw(t, "GET / HTTP/1.1\r\nHost: x\r\n"+fields+"\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET /second HTTP/1.1\r\nHost: x\r\n\r\n")
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 200 || !res.Close {
			t.Fatalf("%q: %v, %v", fields, res, err)
		}
		body2s(t, res)
		if h := <-heads; len(h) != 0 {
			t.Errorf("%q went out as %v", fields, h)
		}
		if rest, _ := io.ReadAll(r); len(rest) != 0 || len(heads) != 0 {
			t.Errorf("%q: more than one answer: %q", fields, rest)
		}
	}
	// Without Connection, Upgrade means nothing.
	if code := f.rawCode(t, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n"); code != 200 {
		t.Error(code)
	}
	if h := <-heads; len(h) != 0 {
		t.Errorf("went out as %v", h)
	}
}

func TestFailedUpgradeIsPassedOnAndClosed(t *testing.T) {
	hits := make(chan string, 10)
	u := upstream(t, false, func(w http.ResponseWriter, r *http.Request) {
		hits <- r.URL.Path
		w.WriteHeader(403)
		fmt.Fprint(w, "forbidden by RBAC")
	})
	f := start(t, Options{Server: u}, false)
	_, r := f.raw(t, fmt.Sprintf(handshake, "websocket")+"GET /second HTTP/1.1\r\nHost: x\r\n\r\n")
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 403 || body2s(t, res) != "forbidden by RBAC" || !res.Close || res.Header.Get(ErrorHeader) != "" {
		t.Fatal(res, err)
	}
	if rest, _ := io.ReadAll(r); len(rest) != 0 || len(hits) != 1 {
		t.Errorf("after it came %q, and %d requests were sent", rest, len(hits))
	}
}

func TestUpgradeRefused(t *testing.T) {
	u, _ := switching(t, echo)
	f := start(t, Options{Server: u}, false)
	if code := f.rawCode(t, strings.Replace(fmt.Sprintf(handshake, "websocket"), "\r\n\r\n", "\r\nContent-Length: 5\r\n\r\nhello", 1)); code != 400 {
		t.Errorf("with a body: %d", code)
	}
	// A server that switches to something else.
	for _, answer := range []string{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\n\r\n",
	} {
		f = start(t, Options{Server: scriptedHTTP1(t, answer)}, false)
		if code := f.rawCode(t, fmt.Sprintf(handshake, "websocket")); code != 502 {
			t.Errorf("%q: %d", answer, code)
		}
	}
	p, err := New(Options{Server: u, Transport: outbound(t, true)})
	if err != nil {
		t.Fatal(err)
	}
	f.Proxy.named.upgrade = p.named.upgrade
	if code := f.rawCode(t, fmt.Sprintf(handshake, "websocket")); code != 501 {
		t.Errorf("without a way out: %d", code)
	}
}

func TestUpgradePassesThroughForeignBearer(t *testing.T) {
	u, heads := switching(t, echo)
	signed := false
	f := start(t, Options{Server: u, ForeignAuthorization: Passthrough, Anonymous: outbound(t, true), AnonymousUpgrade: outbound(t, false),
		Sign: func(ctx, *Request) (http.Header, error) { signed = true; return nil, nil }}, false)
	_, r := f.raw(t, strings.Replace(fmt.Sprintf(handshake, "websocket"), "Host: x", "Host: x\r\nAuthorization: Bearer theirs", 1))
	read101(t, r)
	if h := <-heads; h.Get("Authorization") != "Bearer theirs" || signed {
		t.Errorf("%v, signed %v", h, signed)
	}
}
