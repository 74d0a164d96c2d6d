//go:build linux

package integration

import (
	"crypto/tls"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// frameServer is an API server that is driven frame by frame.
type frameServer struct {
	url    string
	script frameScript

	mu       sync.Mutex
	conns    []*frameConn // all that ever were
	requests []frameRequest
	resumed  int // handshakes; the others were full
}

// frameScript says how it behaves. Everything may be left out: then it answers
// 200 and {} to each request.
type frameScript struct {
	settings []http2.Setting
	noAck    bool                                                 // SETTINGS are never acknowledged
	greet    func(c *frameConn)                                   // instead of SETTINGS; writing is locked
	header   func(q frameRequest)                                 // of each request, whose trailers have no method; locked
	data     func(c *frameConn, id uint32, data []byte, end bool) // locked
	window   func(c *frameConn, id uint32, n uint32)
	reset    func(c *frameConn, id uint32, code http2.ErrCode)
}

// frameConn is a connection of it. Its functions are for scripts, while writing
// is locked; all others use do.
type frameConn struct {
	*frames
	s      *frameServer
	number int            // from 1
	gone   chan struct{}  // closed when the peer has ended it
	goAway *http2.ErrCode // what the peer said, guarded by s.mu
	acks   atomic.Int64   // of SETTINGS, by the peer
}

// frameRequest is a header block of a request, as it came.
type frameRequest struct {
	c      *frameConn
	id     uint32
	end    bool
	fields []hpack.HeaderField
}

func (q frameRequest) field(name string) string { return fieldOf(q.fields, name) }
func (q frameRequest) path() string             { return q.field(":path") }

func newFrameServer(t *testing.T, script frameScript) *frameServer {
	t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "frames", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"},
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: suite.cluster.CA.Pool(),
	})
	must(t, err)
	s := &frameServer{url: "https://" + l.Addr().String(), script: script}
	var wg sync.WaitGroup
	var raws []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			raws = append(raws, conn)
			s.mu.Unlock()
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				s.serve(conn.(*tls.Conn))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for _, c := range raws {
			_ = c.(*tls.Conn).NetConn().Close()
		}
		s.mu.Unlock()
		wg.Wait()
	})
	return s
}

func (s *frameServer) serve(conn *tls.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return
	}
	c := &frameConn{frames: newFrames(conn), s: s, gone: make(chan struct{})}
	defer close(c.gone)
	s.mu.Lock()
	s.conns = append(s.conns, c)
	c.number = len(s.conns)
	if conn.ConnectionState().DidResume {
		s.resumed++
	}
	s.mu.Unlock()
	if err := c.do(func() error {
		if s.script.greet != nil {
			s.script.greet(c)
			return nil
		}
		return c.WriteSettings(s.script.settings...)
	}); err != nil {
		return
	}
	for {
		f, err := c.ReadFrame()
		if _, bad := err.(http2.StreamError); bad {
			continue
		}
		if err != nil || c.do(func() error { return c.take(f) }) != nil {
			return
		}
	}
}

func (c *frameConn) take(f http2.Frame) error {
	id := f.Header().StreamID
	script := c.s.script
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			c.acks.Add(1)
		} else if !script.noAck {
			return c.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.WritePing(true, f.Data)
		}
	case *http2.MetaHeadersFrame:
		q := frameRequest{c, id, f.StreamEnded(), slices.Clone(f.Fields)}
		c.s.mu.Lock()
		c.s.requests = append(c.s.requests, q)
		c.s.mu.Unlock()
		switch {
		case script.header != nil:
			script.header(q)
		case q.end:
			q.ok()
		}
	case *http2.DataFrame:
		n := uint32(len(f.Data()))
		if script.data != nil {
			script.data(c, id, f.Data(), f.StreamEnded())
			return nil
		}
		if n > 0 {
			_ = c.WriteWindowUpdate(0, n)
			_ = c.WriteWindowUpdate(id, n)
		}
		if f.StreamEnded() {
			frameRequest{c: c, id: id}.ok()
		}
	case *http2.WindowUpdateFrame:
		if script.window != nil {
			script.window(c, id, f.Increment)
		}
	case *http2.RSTStreamFrame:
		if script.reset != nil {
			script.reset(c, id, f.ErrCode)
		}
	case *http2.GoAwayFrame:
		code := f.ErrCode
		c.s.mu.Lock()
		c.goAway = &code
		c.s.mu.Unlock()
	}
	return nil
}

// answer writes the header of an answer.
func (q frameRequest) answer(end bool, fields ...string) {
	_ = q.c.headers(q.id, end, append([]string{":status", "200"}, fields...)...)
}

// ok is a whole answer.
func (q frameRequest) ok() {
	q.answer(false, "content-type", "application/json")
	_ = q.c.WriteData(q.id, true, []byte("{}\n"))
}

// later is a whole answer from elsewhere, where writing is not locked.
func (q frameRequest) later() { _ = q.c.do(func() error { q.ok(); return nil }) }

// all returns the requests whose path is this; trailers are none.
func (s *frameServer) all(path string) (found []frameRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.requests {
		if q.path() == path {
			found = append(found, q)
		}
	}
	return found
}

// counts says how many connections there were, how many are left and how many of
// all were resumed.
func (s *frameServer) counts() (all, open, resumed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		select {
		case <-c.gone:
		default:
			open++
		}
	}
	return len(s.conns), open, s.resumed
}
