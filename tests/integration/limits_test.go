//go:build linux

package integration

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestFewDescriptors: a proxy that may have 64 descriptors, and 100 clients
// that stay. Who is connected is served; when they go it is as before, and its
// lock is heard at any time.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	const limit, crowd = 64, 100
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	cmd := h.command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" exec`, limit), h.bin)
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info())
	d := decode(t, h.do(cmd).ok(t))
	socket := d.socket(t)
	pid := 0
	for pid = range processes(h.dir) {
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	must(t, err)
	if !strings.Contains(string(limits), fmt.Sprintf("Max open files            %-20d %d ", limit, limit)) {
		t.Fatalf("the daemon's limits are not what this is about: %s", limits)
	}
	early := d.client(t, u.url)
	get(t, early, u.url+"/version")
	descriptors := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		must(t, err)
		return len(entries)
	}
	before := descriptors()
	fill := func() (leave func()) {
		t.Helper()
		var conns []net.Conn
		for range crowd {
			conn, err := net.Dial("unix", socket)
			must(t, err)
			conns = append(conns, conn)
		}
		eventually(t, 5*time.Second, func() error {
			if n := descriptors(); n < limit-1 {
				return fmt.Errorf("%d descriptors are open, want all %d", n, limit)
			}
			return nil
		})
		return func() {
			for _, c := range conns {
				_ = c.Close()
			}
		}
	}
	leave := fill()
	get(t, early, u.url+"/version") // over connections that are there
	begin := time.Now()
	leave()
	get(t, d.client(t, u.url), u.url+"/version")
	took := time.Since(begin)
	t.Logf("a new client is served %v after the crowd has left", took)
	if took > 5*time.Second {
		t.Errorf("it took %v, want at most 5 s", took)
	}
	eventually(t, 5*time.Second, func() error {
		if n := descriptors(); n > before+2 {
			return fmt.Errorf("%d descriptors are open, before there were %d", n, before)
		}
		return nil
	})

	leave = fill()
	defer leave()
	end := processEnd(t, pid)
	begin = time.Now()
	p.lock.release()
	end()
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("without a free descriptor it ends %v after its lock", took)
	}
	h.gone(socket, time.Second)
}

// cutIn says how long it took until the peer ended a connection on which
// feed, if there is one, goes on sending.
func cutIn(t *testing.T, conn net.Conn, feed string) time.Duration {
	t.Helper()
	begin := time.Now()
	must(t, conn.SetDeadline(begin.Add(patience)))
	stop := make(chan struct{})
	defer close(stop)
	if feed != "" {
		go func() {
			tick := time.NewTicker(500 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					if _, err := io.WriteString(conn, feed); err != nil {
						return
					}
				case <-stop:
					return
				}
			}
		}()
	}
	if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
		t.Errorf("still open after %v", time.Since(begin))
	}
	return time.Since(begin)
}

// TestSlowClients: whoever does not get to the point is cut off, and nobody
// else notices.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	const limit = 12 * time.Second
	h, u := newHome(t), newUpstream(t)
	s := h.serveJane(u.url)
	client := s.http2(t)
	get(t, client, s.listen+"/version")
	raw := func() net.Conn {
		conn, err := net.Dial("tcp", s.address())
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	opened := func(protocol, first string) net.Conn {
		conn := s.dial(t, protocol)
		_, err := io.WriteString(conn, first)
		must(t, err)
		return conn
	}
	half := raw()
	// The head of a TLS record that says: 512 bytes of a ClientHello follow.
	_, err := half.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252})
	must(t, err)
	cases := []struct {
		name string
		conn net.Conn
		feed string
	}{
		{"silence instead of a handshake", raw(), ""},
		{"half a handshake", half, ""},
		{"a handshake, byte by byte", raw(), "\x16"},
		{"silence after the handshake", opened("http/1.1", ""), ""},
		{"half a header", opened("http/1.1", "GET /slow HTTP/1.1\r\nHost: "+s.address()+"\r\n"), ""},
		{"a header, line by line", opened("http/1.1", "GET /slow HTTP/1.1\r\nHost: "+s.address()+"\r\n"), "X-A: b\r\n"},
		{"HTTP/2 without its preface", opened("h2", "PRI"), ""},
	}
	var wg sync.WaitGroup
	for _, c := range cases {
		wg.Go(func() {
			took := cutIn(t, c.conn, c.feed)
			t.Logf("%s: cut after %v", c.name, took)
			if took > limit {
				t.Errorf("%s: cut after %v", c.name, took)
			}
		})
	}
	cut := make(chan struct{})
	go func() { wg.Wait(); close(cut) }()
	for served := 0; ; served++ {
		begin := time.Now()
		get(t, client, s.listen+"/version")
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("others wait %v", took)
		}
		select {
		case <-cut:
			t.Logf("%d requests of others meanwhile", served)
			if u.countOf("/slow") > 0 {
				t.Error("half a request reached the server")
			}
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (u *upstream) countOf(prefix string) (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.requests {
		if strings.HasPrefix(s.target, prefix) {
			n++
		}
	}
	return n
}

// TestHugeHeader: 8 MiB of header fields are told to be too many, or cut off,
// and cost neither memory nor time.
func TestHugeHeader(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	h, u := newHome(t), newUpstream(t)
	s := h.serveJane(u.url)
	get(t, s.http2(t), s.listen+"/version")
	pid := s.cmd.Process.Pid
	before := memoryOf(t, pid, "VmRSS")

	line := "X-Filler: " + strings.Repeat("x", 1000) + "\r\n"
	for name, head := range map[string]string{
		"many fields": strings.Repeat(line, size/len(line)),
		"one field":   "X-Filler: " + strings.Repeat("x", size) + "\r\n",
		"target":      "",
	} {
		target := "/huge"
		if name == "target" {
			target += "?" + strings.Repeat("x", size)
		}
		conn := s.dial(t, "http/1.1")
		sent := make(chan error, 1)
		go func() {
			_, err := io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: "+s.address()+"\r\n"+head+"\r\n")
			sent <- err
		}()
		begin := time.Now()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		took := time.Since(begin)
		switch {
		case isTimeout(err):
			t.Errorf("HTTP/1.1, %s: neither answered nor cut", name)
		case err == nil && (resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge || !resp.Close):
			t.Errorf("HTTP/1.1, %s: answered %s, close: %v", name, resp.Status, resp.Close)
		case took > 12*time.Second:
			t.Errorf("HTTP/1.1, %s: ended after %v", name, took)
		}
		_ = conn.Close()
		<-sent
	}
	for name, repeat := range map[string]bool{"many fields": true, "one field": false} {
		conn := s.dial(t, "h2")
		sent := make(chan error, 1)
		go func() { sent <- hugeHTTP2(conn, s.address(), size, repeat) }()
		end := http2End(conn)
		if isTimeout(end) {
			t.Errorf("HTTP/2, %s: neither answered nor cut", name)
		}
		t.Logf("HTTP/2, %s: %v", name, end)
		_ = conn.Close()
		<-sent
	}
	if n := u.countOf("/huge"); n != 0 {
		t.Errorf("%d of them reached the server", n)
	}
	get(t, s.http2(t), s.listen+"/version")
	peak := memoryOf(t, pid, "VmHWM")
	t.Logf("memory %s before, %s at its peak", mib(before), mib(peak))
	if peak > before+bound(64<<20) {
		t.Errorf("memory grew from %s to %s", mib(before), mib(peak))
	}
}

// http2Frame is RFC 9113 section 4.1.
func http2Frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = binary.BigEndian.AppendUint32(append(b, flags), stream)
	return append(b, payload...)
}

// literal is a header field as HPACK's literal without indexing, RFC 7541
// section 6.2.2; name shorter than 127 bytes.
func literal(b []byte, name, value string) []byte {
	b = append(append(b, 0, byte(len(name))), name...)
	if n := len(value); n < 127 {
		b = append(b, byte(n))
	} else {
		for b, n = append(b, 127), n-127; ; n >>= 7 {
			if n < 128 {
				b = append(b, byte(n))
				break
			}
			b = append(b, byte(n)|128)
		}
	}
	return append(b, value...)
}

// hugeHTTP2 sends a request with a header of size bytes, as HEADERS and
// CONTINUATION frames.
func hugeHTTP2(conn *tls.Conn, host string, size int, repeat bool) error {
	const settings, headers, continuation, endStream, endHeaders = 4, 1, 9, 1, 4
	block := literal(nil, ":method", "GET")
	for _, f := range [][2]string{{":scheme", "https"}, {":authority", host}, {":path", "/huge"}} {
		block = literal(block, f[0], f[1])
	}
	if repeat {
		for len(block) < size {
			block = literal(block, "x-filler", strings.Repeat("x", 1000))
		}
	} else {
		block = literal(block, "x-filler", strings.Repeat("x", size))
	}
	out := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), http2Frame(settings, 0, 0, nil)...)
	kind, flags := byte(headers), byte(endStream)
	for len(block) > 0 {
		n := min(len(block), 16<<10)
		if n == len(block) {
			flags |= endHeaders
		}
		out = append(out, http2Frame(kind, flags, 1, block[:n])...)
		kind, flags, block = continuation, 0, block[n:]
	}
	_, err := conn.Write(out)
	return err
}

// http2End reads frames until the peer has said what becomes of stream 1.
func http2End(conn *tls.Conn) error {
	head := make([]byte, 9)
	for {
		if _, err := io.ReadFull(conn, head); err != nil {
			return err
		}
		payload := make([]byte, binary.BigEndian.Uint32(head)>>8)
		if _, err := io.ReadFull(conn, payload); err != nil {
			return err
		}
		switch stream := binary.BigEndian.Uint32(head[5:]) & 0x7fffffff; {
		case head[3] == 7:
			return errors.New("GOAWAY")
		case stream == 1 && head[3] == 3:
			return errors.New("RST_STREAM")
		case stream == 1 && head[3] == 1:
			return fmt.Errorf("answered: %q", payload)
		}
	}
}

// TestClientsKilled: a process with hundreds of streams, over HTTP/2, HTTP/1.1
// and upgrades, is killed. The server's ends of them end with it.
func TestClientsKilled(t *testing.T) {
	t.Parallel()
	const h2, http1, upgrades = 400, 60, 40
	h := newHome(t)
	var c census
	s := h.serveJane(startTLS(t, "127.0.0.1", &c).URL)
	b := h.startCmd(h.role(roleCrowd, fmt.Sprintf("%s %d %d %d", s.kubeconfig, h2, http1, upgrades)))
	b.stdout.await(t, "ready\n")
	if n := c.now(); n != h2+http1+upgrades {
		t.Fatalf("%d streams are open at the server, want %d", n, h2+http1+upgrades)
	}
	must(t, syscall.Kill(b.cmd.Process.Pid, syscall.SIGKILL))
	begin := time.Now()
	eventually(t, 5*time.Second, func() error {
		if n := c.now(); n > 0 {
			return fmt.Errorf("%d streams are open at the server", n)
		}
		return nil
	})
	took := time.Since(begin)
	t.Logf("all %d streams cancelled at the server after %v", h2+http1+upgrades, took)
	if took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	get(t, s.http2(t), s.listen+"/version")
}
