package enroll

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
)

// network is HTTP over pipes, which a synctest bubble understands.
type network struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
	mu    sync.Mutex
	open  []net.Conn
	down  bool
}

func newClient(t *testing.T, h http.Handler) (*Client, *network) {
	n := &network{conns: make(chan net.Conn), ended: make(chan struct{})}
	transport := &http.Transport{DialContext: n.dial}
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(n) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-done
	})
	return &Client{Server: &url.URL{Scheme: "http", Host: "cluster.test:6443"}, Transport: transport}, n
}

func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	n.mu.Lock()
	if n.down {
		n.mu.Unlock()
		return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
	}
	n.open = append(n.open, a)
	n.mu.Unlock()
	select {
	case n.conns <- b:
		return a, nil
	case <-n.ended:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

// cut ends every connection in the middle of whatever it does.
func (n *network) cut(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.open {
		_ = c.Close()
	}
	n.open, n.down = nil, down
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.ended:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error   { n.once.Do(func() { close(n.ended) }); return nil }
func (n *network) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }
