package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// A roundTripper sends requests to the proxy.
type roundTripper struct {
	c         *Client
	transport *http.Transport
	gate      gate
}

func newRoundTripper(c *Client) *roundTripper {
	rt := &roundTripper{c: c}
	rt.transport = &http.Transport{
		DialTLSContext: rt.dial,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("the proxy speaks TLS only")
		},
		ForceAttemptHTTP2:   true,
		DisableCompression:  c.o.Cluster.DisableCompression,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
	}
	return rt
}

func (rt *roundTripper) dial(ctx context.Context, _, address string) (net.Conn, error) {
	secure, err := rt.c.dialTLS(ctx, address, nil)
	if err != nil {
		return nil, err
	}
	raw := secure.NetConn().(*conn)
	rt.gate.opened()
	raw.onClose(rt.gate.closed)
	return secure, nil
}

// RoundTrip implements http.RoundTripper.
func (rt *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	err := rt.allowed(r)
	var leave func()
	if err == nil {
		leave, err = rt.gate.enter(r.Context())
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	if leave != nil {
		defer leave()
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { leave() },
		}))
	}
	return rt.transport.RoundTrip(r)
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] asks for.
func (rt *roundTripper) CloseIdleConnections() { rt.transport.CloseIdleConnections() }

func (rt *roundTripper) allowed(r *http.Request) error {
	if r.URL == nil || r.URL.Scheme != "https" {
		return errors.New("a request to a proxied cluster must be https")
	}
	if host := hostPort(r.URL); rt.c.host != "" && host != rt.c.host {
		return fmt.Errorf("a request to %s: the proxy is for %s alone", host, rt.c.host)
	}
	return nil
}

// A gate lets one request alone make the first connection. Without it, many requests
// that start together make a connection each, of which all but one are thrown away
// where HTTP/2 is spoken.
type gate struct {
	mu    sync.Mutex
	open  int
	first chan struct{} // closed when the request that went first has its connection, or none
}

// enter returns when a connection is open, or when the caller is to make the first,
// which it ends by calling leave.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	for {
		g.mu.Lock()
		if g.open > 0 {
			g.mu.Unlock()
			return nil, nil
		}
		if g.first == nil {
			first := make(chan struct{})
			g.first = first
			g.mu.Unlock()
			return sync.OnceFunc(func() {
				g.mu.Lock()
				g.first = nil
				g.mu.Unlock()
				close(first)
			}), nil
		}
		first := g.first
		g.mu.Unlock()
		select {
		case <-first:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (g *gate) opened() {
	g.mu.Lock()
	g.open++
	g.mu.Unlock()
}

func (g *gate) closed() {
	g.mu.Lock()
	g.open--
	g.mu.Unlock()
}
