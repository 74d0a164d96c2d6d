package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/transport/h2"
)

const (
	// headerTime bounds the TLS handshake and the header of an HTTP/1.1 request.
	headerTime = 10 * time.Second
	// idleTime is longer than client-go's 90 s, so that it is the client that
	// closes, and never in the moment in which it sends a request.
	idleTime = 3 * time.Minute
	// maxHeader is kube-apiserver's own limit; a request line with ten thousand
	// query parameters must fit.
	maxHeader = 1 << 20

	maxStreams       = 1000           // per HTTP/2 connection
	streamWindow     = 256 << 10      // unread bytes per upload
	connectionWindow = 4<<20 - 64<<10 // unread bytes per connection; net/http wants less than 4 MiB
)

// NewServer gives the server for a listener of ours, with the limits that keep
// one client from starving the others: the TLS handshake and a request's
// header (a frame, of HTTP/2) have to come within 10 s, a header has at most 1 MiB (431), an HTTP/2
// connection has at most 1000 streams and bounded windows. There is no limit
// on the time of a request or of a response: watches and logs live for hours.
//
// HTTP/2 needs TLS and "h2" in the NextProtos of the listener's tls.Config;
// ServeTLS sees to it. It should serve a [Listener].
func NewServer(h http.Handler, o ServerOptions) *http.Server {
	logger := o.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		Protocols:         protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerConnection: connectionWindow,
			MaxReceiveBufferPerStream:     streamWindow,
		},
		// OPTIONS * would be answered by net/http, before our checks.
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, waitersKey{}, new(atomic.Int32))
		},
		ErrorLog: log.New(&serverLog{logger}, "", 0),
	}
	memory := h2.NewMemory(0) // of all connections
	h2.Configure(s, func(tc *tls.Conn, base context.Context) h2.Options {
		return h2.Options{
			Begin:  o.Plane.begin(h, h2.ServeOptions{Context: base, RemoteAddr: tc.RemoteAddr().String()}),
			Memory: memory, Flood: o.Flood, Logger: logger,
		}
	})
	return s
}

// ServerOptions configure NewServer.
type ServerOptions struct {
	// Plane passes on what comes over HTTP/2. Nil: the handler serves it.
	Plane Plane
	// Flood is told when an HTTP/2 connection is ended for what its client does; see h2.Options.
	Flood  func(kind string)
	Logger *slog.Logger // nil: nothing is logged
}

// Listener is to be put around the listener that a server of NewServer serves:
// its HTTP/2 connections then need no goroutine to write. Wrappers around ln's own
// connections have NetConn() net.Conn.
func Listener(ln net.Listener) net.Listener { return h2.Listener{Listener: ln} }

// serverLog passes net/http's own lines on. Clients that hang up during the
// handshake are everyday.
type serverLog struct{ to *slog.Logger }

func (l *serverLog) Write(line []byte) (int, error) {
	level := slog.LevelWarn
	if bytes.HasPrefix(line, []byte("http: TLS handshake error")) {
		level = slog.LevelDebug
	}
	l.to.LogAttrs(context.Background(), level, "http server", slog.String("error", string(bytes.TrimSpace(line))))
	return len(line), nil
}
