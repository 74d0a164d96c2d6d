// Package apiserver is a very small Kubernetes API server for the demonstration: TLS on loopback under a throw-away CA,
// HTTP/2 and HTTP/1.1, pods of one namespace with get, list, watch and create, an exec that upgrades, and a whoami.
// What it does not simplify is authentication: client certificates and SigV4 signatures are really verified, and a
// request without either is refused.
package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Options configure a Server; the zero value is a server that knows no access key.
type Options struct {
	// AccessKeys by their id. Who signs with one is its User.
	AccessKeys map[string]AccessKey
	// Region and Service are the SigV4 scope that signatures must name. Needed only with AccessKeys.
	Region, Service string
	// Pods that run from the start, in the namespace "default".
	Pods []string
	// Running is how long a created pod stays Pending before it runs; default 25 ms.
	Running time.Duration
	// Logger, nil for none.
	Logger *slog.Logger
}

// AccessKey is what SigV4 signatures are verified with, and who made them.
type AccessKey struct {
	Secret       string
	SessionToken string // of temporary credentials; "" for permanent ones
	User         string
	Groups       []string
}

// Server is a running API server.
type Server struct {
	o       Options
	url     string
	addr    string
	serving *authority
	clients *authority
	signed  authenticator
	store   *store
	http    *http.Server
	ctx     context.Context // ends with Close: watches, upgraded connections and pending pods hang on it
	stop    context.CancelFunc
	wg      sync.WaitGroup
	mu      sync.Mutex
	closed  bool
}

// Start listens on a free loopback port and serves until Close.
func Start(o Options) (*Server, error) {
	if o.Running == 0 {
		o.Running = 25 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, store: newStore(), signed: newAuthenticator(o)}
	for _, name := range o.Pods {
		s.store.create(Pod{Metadata: Meta{Name: name}})
		s.store.run(name)
	}
	var err error
	if s.serving, err = newAuthority("demo-serving-ca"); err != nil {
		return nil, err
	}
	// Two authorities, as in a real cluster: who may serve is not who may be a client.
	if s.clients, err = newAuthority("demo-client-ca"); err != nil {
		return nil, err
	}
	cert, err := s.serving.server()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening on loopback for the embedded API server: %w", err)
	}
	s.addr = l.Addr().String()
	s.url = "https://" + s.addr
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		TLSConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{cert},
			// As kube-apiserver does: a certificate is asked for, and judged per request, so that a bad one is a 401
			// and not a failed handshake.
			ClientAuth: tls.RequestClientCert,
		},
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		if err := s.http.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
			o.Logger.Error("the embedded API server ended", "err", err)
		}
	}()
	return s, nil
}

// URL is https://127.0.0.1:PORT.
func (s *Server) URL() string { return s.url }

// Address is 127.0.0.1:PORT.
func (s *Server) Address() string { return s.addr }

// CA is the PEM certificate that the server's own certificate is signed by.
func (s *Server) CA() []byte { return s.serving.pem() }

// Issue makes a client key (PKCS#8) and certificate, both PEM: user becomes CN, groups O.
func (s *Server) Issue(user string, groups ...string) (keyPEM, certPEM []byte, err error) {
	return s.clients.client(user, groups)
}

// ClientConfig trusts this server, and presents certs if there are any.
func (s *Server) ClientConfig(certs ...tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.serving.pool, ServerName: "127.0.0.1", Certificates: certs}
}

// Close cuts every connection and waits until nothing of the server runs any more.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	err := s.http.Close()
	s.wg.Wait()
	return err
}
