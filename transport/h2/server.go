package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Server is what speaks HTTP/2 for an http.Server.
type Server struct {
	options func(*tls.Conn, context.Context) Options

	mu      sync.Mutex
	conns   map[*Conn]struct{}
	down    bool
	running int
	none    sync.Cond // running is 0
}

// Configure has srv speak HTTP/2 by this package. It is called before srv serves.
// Close, Shutdown, RegisterOnShutdown, ConnContext, BaseContext and ErrorLog mean
// what they do for net/http's own HTTP/2, but Shutdown also waits for the
// handlers. What serves a listener of net.Listener directly blocks in reads and
// writes; put [Listener] around it.
//
// o gives the options of a connection; base is the context of net/http's
// connection, with the values of ConnContext. Without Options.Begin every request
// is answered by srv.Handler. What is zero comes from srv: IdleTime from
// IdleTimeout, HeaderTime from ReadHeaderTimeout, MaxHeader from MaxHeaderBytes,
// streams and windows from HTTP2, Logger from ErrorLog. A nil o leaves all to srv.
func Configure(srv *http.Server, o func(tc *tls.Conn, base context.Context) Options) *Server {
	s := &Server{options: o, conns: make(map[*Conn]struct{})}
	s.none.L = &s.mu
	if s.options == nil {
		s.options = func(*tls.Conn, context.Context) Options { return Options{} }
	}
	if srv.TLSNextProto == nil {
		srv.TLSNextProto = make(map[string]func(*http.Server, *tls.Conn, http.Handler))
	}
	srv.TLSNextProto["h2"] = s.serve
	srv.RegisterOnShutdown(s.Shutdown)
	return s
}

// serve is called by net/http in the goroutine of the connection, after the
// handshake. When it returns, the connection is closed.
func (s *Server) serve(srv *http.Server, tc *tls.Conn, h http.Handler) {
	base := context.Background()
	// net/http gives the connection's context in this way, to any HTTP/2.
	if b, ok := h.(interface{ BaseContext() context.Context }); ok {
		base = b.BaseContext()
	}
	o := s.options(tc, base)
	fromServer(&o, srv)
	if o.Begin == nil {
		so := ServeOptions{Context: base, RemoteAddr: tc.RemoteAddr().String(), ReadTimeout: srv.ReadTimeout, WriteTimeout: srv.WriteTimeout}
		o.Begin = func(b *Batch, st *Stream, fields []Field, end bool) { Serve(b, st, fields, end, h, so) }
	}
	c := New(tc, o)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.running++
	down := s.down
	s.mu.Unlock()
	if down {
		c.Shutdown()
	}
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		if s.running--; s.running == 0 {
			s.none.Broadcast()
		}
		s.mu.Unlock()
	}()
	var own *ConnError
	if err := c.Run(); errors.As(err, &own) && !own.Remote {
		c.log.Debug("a connection was ended", "remote", tc.RemoteAddr().String(), "error", err)
	}
	c.Wait()
}

func fromServer(o *Options, srv *http.Server) {
	if o.IdleTime == 0 {
		if o.IdleTime = srv.IdleTimeout; o.IdleTime == 0 {
			o.IdleTime = srv.ReadTimeout
		}
	}
	if o.HeaderTime == 0 {
		if o.HeaderTime = srv.ReadHeaderTimeout; o.HeaderTime == 0 {
			o.HeaderTime = srv.ReadTimeout
		}
	}
	if o.MaxHeader == 0 && srv.MaxHeaderBytes > 0 {
		o.MaxHeader = uint32(min(srv.MaxHeaderBytes, 1<<30))
	}
	if h := srv.HTTP2; h != nil {
		or := func(to *int32, n int) {
			if *to == 0 {
				*to = int32(min(n, maxWindow))
			}
		}
		or(&o.StreamWindow, h.MaxReceiveBufferPerStream)
		or(&o.ConnWindow, h.MaxReceiveBufferPerConnection)
		if o.MaxStreams == 0 {
			o.MaxStreams = uint32(max(h.MaxConcurrentStreams, 0))
		}
		if o.MaxFrame == 0 {
			o.MaxFrame = uint32(max(h.MaxReadFrameSize, 0))
		}
		if o.PingInterval == 0 {
			o.PingInterval, o.PingTimeout = h.SendPingTimeout, h.PingTimeout
			if o.PingTimeout == 0 {
				o.PingTimeout = 15 * time.Second
			}
		}
	}
	if o.Logger == nil && srv.ErrorLog != nil {
		o.Logger = slog.New(slog.NewTextHandler(srv.ErrorLog.Writer(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
}

// Conns are the connections of the moment.
func (s *Server) Conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

// Shutdown ends all connections in good order, present and future ones, and does
// not wait. http.Server.Shutdown calls it.
func (s *Server) Shutdown() {
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	for _, c := range s.Conns() {
		c.Shutdown()
	}
}

// Close ends all connections at once, and does not wait. http.Server.Close does as much.
func (s *Server) Close() {
	for _, c := range s.Conns() {
		c.Close()
	}
}

// Wait waits for the end of all connections and of their handlers. It is called
// after Close or Shutdown of the http.Server, for Close does not wait.
func (s *Server) Wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running > 0 {
		s.none.Wait()
	}
}
