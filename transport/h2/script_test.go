package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A scripted server does what net/http's never would. It takes one connection.
type scripted struct {
	t    testing.TB
	conn *Conn
	*http2.Framer
	tls    *tls.Conn
	header bytes.Buffer
	enc    *hpack.Encoder
}

// script runs a server on a connection, and returns the other end of it, and a function
// that waits for the end of the script.
func script(t testing.TB, o Options, f func(s *scripted)) (c *Conn, wait func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{t: t}
	done, given := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		_ = l.Close()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = raw.Close() }()
		_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
		s.tls = tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{testCertificate(t)}, NextProtos: []string{"h2"}})
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(s.tls, preface); err != nil || string(preface) != http2.ClientPreface {
			t.Errorf("preface: %q, %v", preface, err)
			return
		}
		s.Framer = http2.NewFramer(s.tls, s.tls)
		s.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		s.SetMaxReadFrameSize(1 << 20)
		s.enc = hpack.NewEncoder(&s.header)
		_ = s.WriteSettings()
		<-given
		f(s)
		for s.next() != nil { // until the client hangs up
		}
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(NewWire(raw), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err := tc.Handshake(); err != nil {
		t.Fatal(err)
	}
	c = New(tc, o)
	s.conn = c
	over := make(chan struct{})
	go func() { defer close(over); _ = c.Run() }()
	close(given)
	wait = func() { c.Close(); <-over; <-done }
	t.Cleanup(wait)
	return c, wait
}

// next is the next frame that is for the script; nil: the client has gone.
func (s *scripted) next() http2.Frame {
	for {
		f, err := s.ReadFrame()
		if err != nil {
			return nil
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = s.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = s.WritePing(true, f.Data)
			}
		case *http2.WindowUpdateFrame:
		default:
			return f
		}
	}
}

// request is the next one, its body not read.
func (s *scripted) request() *http2.MetaHeadersFrame {
	for {
		switch f := s.next().(type) {
		case nil:
			return nil
		case *http2.MetaHeadersFrame:
			return f
		}
	}
}

// reset is the code of the next RST_STREAM; all else is skipped.
func (s *scripted) reset() http2.ErrCode {
	for {
		switch f := s.next().(type) {
		case nil:
			s.t.Error("no RST_STREAM came")
			return 0
		case *http2.RSTStreamFrame:
			return f.ErrCode
		}
	}
}

func (s *scripted) head(id uint32, end bool, fields ...string) {
	s.header.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.header.Bytes(), EndHeaders: true, EndStream: end})
}

// once has c send one request, and returns its answer, or the error.
func once(t testing.TB, c *Conn, method string, body io.Reader) (status int, answer string, err error) {
	t.Helper()
	res, err := send(t, c, newRequest(t, context.Background(), method, "/", body))
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}
