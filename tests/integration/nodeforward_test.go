//go:build linux

package integration

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"
)

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> \d+\n`)

// forward starts a port-forward to a port of pod p and returns its address.
func (r *route) forward(t *testing.T, port string) (*background, string) {
	t.Helper()
	b := r.start(r.args("port-forward", "pod/p", "--address", "127.0.0.1", ":"+port)...)
	m := forwarding.FindStringSubmatch(b.stdout.await(t, "-> "+port+"\n"))
	if m == nil {
		t.Fatalf("kubectl port-forward printed %s", b.stdout)
	}
	return b, m[1]
}

// forwards: connections beside each other, each with 32 MiB there and
// back, where r says no other size.
func forwards(t *testing.T, r *route) {
	t.Helper()
	b, address := r.forward(t, echoPort)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if err := echoed(address, fmt.Sprintf("%s %d", r.ns, i), r.size/2); err != nil {
				t.Errorf("connection %d: %v\n%s", i, err, b.stderr)
			}
		})
	}
	wg.Wait()
	b.signal(syscall.SIGINT)
	b.wait()
}

// sameHalfClose: what becomes of an answer that a pod gives only when its client
// has said all is the runtime's to decide (containerd 1.6 drops it), and is the
// same with execproxy as without. TestStreamServer has a runtime that keeps it.
func sameHalfClose(t *testing.T, r *route) {
	t.Helper()
	through := *r
	through.kubeconfig = r.direct
	direct, proxied := through.total(t), r.total(t)
	t.Logf("a pod's answer after the end is %q", direct)
	if direct != proxied {
		t.Errorf("a pod's answer after the end is %q, and through execproxy %q", direct, proxied)
	}
}

// total sends totalPort a mebibyte, and then says that this was all.
func (r *route) total(t *testing.T) string {
	t.Helper()
	b, address := r.forward(t, totalPort)
	conn, err := net.Dial("tcp", address)
	must(t, err)
	defer func() { _ = conn.Close() }()
	must(t, conn.SetDeadline(time.Now().Add(2*patience)))
	_, err = io.CopyN(conn, noise(r.ns), 1<<20)
	must(t, err)
	must(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("the answer ends with %v\n%s", err, b.stderr)
	}
	b.signal(syscall.SIGINT)
	b.wait()
	return string(answer)
}

// echoed opens a connection and holds what comes back against what was sent.
func echoed(address, seed string, size int64) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := echoesNoise(conn, seed, size); err != nil {
		return err
	}
	// Nothing more is said from here, and so the other side says nothing more.
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("after the end %d bytes, %w", n, err)
	}
	return nil
}

// echoesNoise sends noise and compares what comes back by its hash.
func echoesNoise(conn net.Conn, seed string, size int64) error {
	if err := conn.SetDeadline(time.Now().Add(4 * patience)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	there, back := sha256.New(), sha256.New()
	go func() {
		_, err := io.CopyN(io.MultiWriter(conn, there), noise(seed), size)
		sent <- err
	}()
	if n, err := io.CopyN(back, conn, size); err != nil {
		return fmt.Errorf("%d of %d bytes came back: %w", n, size, err)
	}
	if err := <-sent; err != nil {
		return err
	}
	if !bytes.Equal(there.Sum(nil), back.Sum(nil)) {
		return fmt.Errorf("%d bytes came back changed", size)
	}
	return nil
}
