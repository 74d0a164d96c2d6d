package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// upstreamVariable makes this program the API server; it names the directory
// with the server's certificate.
const upstreamVariable = "EXECPROXY_BENCH_UPSTREAM"

// upstream is the running API server, as the bench sees it.
type upstream struct {
	url  string
	pki  pki
	stop func()
}

// serveUpstream is the API server: it tells its address on stdout and ends with
// stdin.
func serveUpstream(dir string) error {
	p := files(dir)
	cert, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return err
	}
	pool, err := readPool(p.ca)
	if err != nil {
		return err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    pool,
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
	})
	if err != nil {
		return err
	}
	fmt.Printf("https://%s\n", l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
	}()
	var (
		a    = newAPI()
		ends atomic.Bool
	)
	go clock(&ends)
	for {
		conn, err := l.Accept()
		if err != nil {
			ends.Store(true)
			return nil // stdin is at its end
		}
		go func() {
			defer conn.Close()
			c := conn.(*tls.Conn)
			if err := c.Handshake(); err != nil {
				return
			}
			state := c.ConnectionState()
			certified := len(state.VerifiedChains) > 0
			if state.NegotiatedProtocol == "h2" {
				serveH2(a, c, certified)
			} else {
				serveH1(a, c, certified)
			}
		}()
	}
}

// date is the Date field, written once a second.
var date atomic.Value

func clock(ends *atomic.Bool) {
	for !ends.Load() {
		date.Store(time.Now().UTC().Format(http.TimeFormat))
		time.Sleep(time.Second)
	}
}

func dateNow() string {
	if s, ok := date.Load().(string); ok {
		return s
	}
	return time.Now().UTC().Format(http.TimeFormat)
}

// watcher is a connection with watches on it.
type watcher interface{ event() }

type watchers struct {
	mu  sync.Mutex
	all map[watcher]struct{}
}

func (w *watchers) add(c watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[c] = struct{}{}
}

func (w *watchers) remove(c watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, c)
}

// event sends one to every watch.
func (w *watchers) event() {
	w.mu.Lock()
	all := make([]watcher, 0, len(w.all))
	for c := range w.all {
		all = append(all, c)
	}
	w.mu.Unlock()
	for _, c := range all {
		c.event()
	}
}

// startUpstream runs this program once more, as the API server.
func startUpstream(ctx context.Context, dir string) (*upstream, error) {
	p, err := writePKI(dir)
	if err != nil {
		return nil, fmt.Errorf("making certificates: %w", err)
	}
	line, stop, err := again(ctx, upstreamVariable+"="+dir)
	if err != nil {
		return nil, fmt.Errorf("starting the API server: %w", err)
	}
	return &upstream{url: line, pki: p, stop: func() { stop() }}, nil
}

// again runs this program once more with a variable set, and returns the line
// that it prints. It ends with its stdin.
func again(ctx context.Context, variable string) (line string, stop func() *os.Process, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), variable)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() *os.Process { _ = stdin.Close(); _ = cmd.Wait(); return cmd.Process }
	line, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, err
	}
	return strings.TrimSpace(line), stop, nil
}
