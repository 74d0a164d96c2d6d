//go:build linux

package integration

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// onSocket is a proxy on a Unix socket, with metrics, and what its clients get
// to know of it.
type onSocket struct {
	*server
	h       *home
	d       *document
	url     string // of the API server
	metrics string // host:port
}

// serveOn starts one; the flags name the API server at url and who we are there.
func (h *home) serveOn(url string, flags ...string) *onSocket {
	h.t.Helper()
	s := &onSocket{h: h, url: url, metrics: fmt.Sprintf("127.0.0.1:%d", freePort(h.t))}
	socket := h.path("r/api.sock")
	s.server = h.serve(append(flags, "--listen", "unix://"+socket, "--metrics-address", s.metrics)...)
	s.d = h.open(plugin{server: url, lock: h.lock(), args: []string{"--socket", socket}})
	return s
}

// janeOn is that for jane's certificate.
func (h *home) janeOn(url string, more ...string) *onSocket {
	h.t.Helper()
	cert, key := h.user("jane", "dev")
	return h.serveOn(url, append(upstreamFlags(url, cert, key), more...)...)
}

func (s *onSocket) client(t *testing.T) *http.Client { t.Helper(); return s.d.client(t, s.url) }

// connect opens a connection with the session's pair to the Unix socket.
func (s *onSocket) connect(t *testing.T, protocol string) *tls.Conn {
	t.Helper()
	conn, err := s.dialTLS(s.d.tls(t, s.url, protocol))
	must(t, err)
	t.Cleanup(func() { _ = conn.NetConn().Close() })
	return conn
}

// dialTLS is for goroutines, which may not end a test.
func (s *onSocket) dialTLS(config *tls.Config) (*tls.Conn, error) {
	raw, err := net.Dial("unix", s.h.path("r/api.sock"))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	_ = conn.SetDeadline(time.Now().Add(patience))
	if err := conn.Handshake(); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, conn.SetDeadline(time.Time{})
}

// rss is the memory that it has now, and at its peak since quiet.
func (s *onSocket) rss(t *testing.T) (now, peak int64) {
	t.Helper()
	return memoryOf(t, s.cmd.Process.Pid, "VmRSS"), memoryOf(t, s.cmd.Process.Pid, "VmHWM")
}

// quiet begins a new peak, and returns the memory that there is at its begin.
func (s *onSocket) quiet(t *testing.T) int64 {
	t.Helper()
	must(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0))
	now, _ := s.rss(t)
	return now
}

// grew fails the test when the peak since quiet is more than limit above before.
func (s *onSocket) grew(t *testing.T, before, limit int64) {
	t.Helper()
	now, peak := s.rss(t)
	t.Logf("memory %s before, %s at its peak, %s now; %s more is the bound", mib(before), mib(peak), mib(now), mib(limit))
	if peak-before > bound(limit) {
		t.Errorf("memory grew by %s, from %s to %s; the bound is %s", mib(peak-before), mib(before), mib(peak), mib(limit))
	}
}

// metric is one figure as Prometheus gets it; absent: found is false.
func (s *onSocket) metric(t *testing.T, name string) (value float64, found bool) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` ([0-9.e+]+)$`).FindStringSubmatch(s.h.metrics(s.metrics))
	if m == nil {
		return 0, false
	}
	value, err := strconv.ParseFloat(m[1], 64)
	must(t, err)
	return value, true
}
