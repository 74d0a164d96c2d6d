//go:build linux

package integration

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// passing starts `serve` as a service manager does, with listening sockets.
func (h *home) passing(files []*os.File, args ...string) *background {
	h.t.Helper()
	// LISTEN_PID is the process's that serves: that of this shell, which becomes it.
	cmd := h.command(append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", h.bin, "serve"}, args...)...)
	cmd.Env = append(cmd.Env, "LISTEN_FDS="+strconv.Itoa(len(files)))
	cmd.ExtraFiles = files
	return h.startCmd(cmd)
}

// TestSocketsPassed: sockets of a service manager are served beside our own, with the same
// guards; they outlive the proxy, and who connects meanwhile is served by the next.
func TestSocketsPassed(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	path, port := h.path("r/passed.sock"), freePort(t)
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	must(t, err)
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	unix.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = tcp.Close(); _ = unix.Close(); _ = os.Remove(path) })
	var files []*os.File
	for _, l := range []interface{ File() (*os.File, error) }{tcp, unix} {
		f, err := l.File()
		must(t, err)
		defer f.Close()
		files = append(files, f)
	}
	url, own := fmt.Sprintf("https://127.0.0.1:%d", port), fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
	args := append([]string{"--listen", url, "--listen", own, "--kubeconfig-out", h.path("out")}, upstreamFlags(u.url, cert, key)...)
	start := func() *server {
		t.Helper()
		b := h.passing(files, args...)
		b.stderr.await(t, "msg=ready")
		return &server{background: b, kubeconfig: h.path("out"), listen: url}
	}
	s := start()
	if got := strings.Join(h.proxy().Listeners, " "); got != url+" unix://"+path+" "+own {
		t.Errorf("it listens at %s", got)
	}
	client := s.client(t)
	get(t, client, url+"/version")
	get(t, client, own+"/version")
	// A plugin finds it by the socket.
	d := decode(t, h.exec(plugin{server: u.url, lock: h.lock(), args: []string{"--socket", path}}).ok(t))
	get(t, d.client(t, u.url), u.url+"/version")
	// The pair is asked for, as everywhere.
	stranger := s.tls(t)
	stranger.Certificates, stranger.GetClientCertificate = nil, nil
	if code := status(t, stranger, url+"/version"); code != 401 {
		t.Errorf("without the pair: %d", code)
	}

	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.stderr)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a socket that was passed is gone: %v", err)
	}
	// Asked while nobody serves.
	answer := make(chan error, 1)
	go func() { answer <- fetch(t.Context(), client, url+"/version") }()
	next := start()
	must(t, <-answer)
	next.signal(syscall.SIGTERM)
	next.wait()

	// What is not for this machine alone is not served.
	open, err := net.ListenTCP("tcp", &net.TCPAddr{})
	must(t, err)
	defer open.Close()
	f, err := open.File()
	must(t, err)
	defer f.Close()
	b := h.passing([]*os.File{f}, upstreamFlags(u.url, cert, key)...)
	if code := b.wait(); code != 1 || !strings.Contains(b.stderr.String(), "loopback") {
		t.Errorf("an open port: exit code %d: %s", code, b.stderr)
	}
}

// status is the code of one answer.
func status(t *testing.T, c *tls.Config, url string) int {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
	res, err := (&http.Client{Transport: tr}).Get(url)
	must(t, err)
	must(t, res.Body.Close())
	return res.StatusCode
}
