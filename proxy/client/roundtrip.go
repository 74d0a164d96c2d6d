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
	c *Client

	mu    sync.Mutex
	pool  *pool
	until time.Time // pool's connections get no new requests after that; zero: no end
}

// A pool is the connections that requests are sent over.
type pool struct {
	transport *http.Transport
	gate      gate
}

func newRoundTripper(c *Client) *roundTripper {
	rt := &roundTripper{c: c}
	rt.pool = rt.newPool()
	return rt
}

func (rt *roundTripper) newPool() *pool {
	p := new(pool)
	p.transport = &http.Transport{
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) { return rt.dial(ctx, p, address) },
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("the proxy speaks TLS only")
		},
		ForceAttemptHTTP2:   true,
		DisableCompression:  rt.c.o.Cluster.DisableCompression,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
	}
	return p
}

func (rt *roundTripper) dial(ctx context.Context, p *pool, address string) (net.Conn, error) {
	secure, err := rt.c.dialTLS(ctx, address, nil)
	if err != nil {
		return nil, err
	}
	raw := secure.NetConn().(*conn)
	rt.retire(raw.notAfter)
	p.gate.opened()
	raw.onClose(p.gate.closed)
	return secure, nil
}

// retire says when the pair of a new connection ends: a proxy may refuse requests over it
// then, and one HTTP/2 connection that is never idle would outlive any pair. It is left in
// time, when nine tenths of what the pair still has are over.
func (rt *roundTripper) retire(notAfter time.Time) {
	if notAfter.IsZero() {
		return
	}
	now := time.Now().Round(0) // by the wall clock, as certificates go
	until := notAfter
	if left := notAfter.Sub(now); left > 2*lead {
		until = now.Add(left / 10 * 9)
	}
	rt.mu.Lock()
	if rt.until.IsZero() || until.Before(rt.until) {
		rt.until = until
	}
	rt.mu.Unlock()
}

// present returns the pool for the next request. Requests that are under way in the one
// before it go on, watches too, and leave its connections idle.
func (rt *roundTripper) present() *pool {
	rt.mu.Lock()
	p, before := rt.pool, (*pool)(nil)
	if !rt.until.IsZero() && time.Now().After(rt.until) {
		before = p
		p = rt.newPool()
		rt.pool, rt.until = p, time.Time{}
	}
	rt.mu.Unlock()
	if before != nil {
		before.transport.CloseIdleConnections()
	}
	return p
}

// RoundTrip implements http.RoundTripper.
func (rt *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	err := rt.allowed(r)
	p := rt.present()
	var leave func()
	if err == nil {
		leave, err = p.gate.enter(r.Context())
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
	return p.transport.RoundTrip(r)
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] asks for.
func (rt *roundTripper) CloseIdleConnections() { rt.present().transport.CloseIdleConnections() }

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
