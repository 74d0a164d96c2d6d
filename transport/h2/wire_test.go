package h2

import (
	"crypto/tls"
	"net"
	"testing"
)

type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

// A Wire finds the socket below what wraps it, and not below what changes its bytes.
func TestWireFindsSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pipe, other := net.Pipe()
	defer pipe.Close()
	defer other.Close()
	for name, w := range map[string]struct {
		c    net.Conn
		poll bool
	}{
		"socket":       {c, canPoll},
		"wrapped":      {wrapped{wrapped{c}}, canPoll},
		"hidden":       {struct{ net.Conn }{c}, false},
		"TLS":          {tls.Client(c, &tls.Config{InsecureSkipVerify: true}), false},
		"TLS, wrapped": {wrapped{tls.Client(c, &tls.Config{InsecureSkipVerify: true})}, false},
		"pipe":         {pipe, false},
	} {
		if got := NewWire(w.c); (got.raw != nil) != w.poll || got.NetConn() != w.c {
			t.Errorf("%s: polled is %v", name, got.raw != nil)
		}
	}
}
