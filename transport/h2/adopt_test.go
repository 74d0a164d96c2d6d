package h2

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"
)

// What ends a connection before its reader has begun is not lost.
func TestClosedBeforeItRuns(t *testing.T) {
	t.Parallel()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{testCertificate(t)}, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	silent := make(chan net.Conn)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.(*tls.Conn).Handshake()
		}
		if err != nil {
			t.Error(err)
		}
		silent <- c
	}()
	tc := tls.Client(NewWire(raw), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err := tc.Handshake(); err != nil {
		t.Fatal(err)
	}
	server := <-silent
	defer server.Close()
	c := New(tc, Options{})
	c.Close()
	_ = c.Run() // comes back
	if err := c.Err(); !errors.Is(err, ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
}
