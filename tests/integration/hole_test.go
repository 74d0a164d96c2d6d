//go:build linux

package integration

import (
	"net"
	"strings"
	"sync"
	"testing"
)

// hole is a piece of network that at times passes nothing and tells nobody.
// Connections that are there then pass nothing ever after: by the time the network
// is back, TCP sends again every half minute at most. New ones wait for the end of
// the hole, which is soon after their last SYN.
type hole struct {
	mu    sync.Mutex
	open  chan struct{} // closed: everything passes
	cuts  int
	ended chan struct{}
}

// newHole leads to an address; the URL of its other end is returned with it.
func newHole(t *testing.T, url string) (*hole, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	h := &hole{open: make(chan struct{}), ended: make(chan struct{})}
	close(h.open)
	t.Cleanup(func() { _ = l.Close(); close(h.ended) })
	to := strings.TrimPrefix(url, "https://")
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go h.join(in, to)
		}
	}()
	return h, "https://" + l.Addr().String()
}

// pass waits until the network passes something, and reports false at the end.
func (h *hole) pass() bool {
	h.mu.Lock()
	open := h.open
	h.mu.Unlock()
	select {
	case <-open:
		return true
	case <-h.ended:
		return false
	}
}

func (h *hole) join(in net.Conn, to string) {
	defer func() { _ = in.Close() }()
	if !h.pass() {
		return
	}
	h.mu.Lock()
	born := h.cuts
	h.mu.Unlock()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	done := make(chan struct{}, 2)
	carry := func(dst, src net.Conn) {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if h.dead(born) {
				swallow(src, buf)
				<-h.ended // not even the end of the connection is told
				return
			}
			if err != nil {
				return
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go carry(out, in)
	go carry(in, out)
	select {
	case <-done:
	case <-h.ended:
	}
}

func (h *hole) dead(born int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cuts != born
}

func (h *hole) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = make(chan struct{})
	h.cuts++
}

func (h *hole) mend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.open)
}
