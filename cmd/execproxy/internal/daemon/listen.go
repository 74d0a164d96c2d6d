package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/execproxy/execproxy/proxy"
	"github.com/execproxy/execproxy/proxy/socket"
	"github.com/execproxy/execproxy/transport/h2"
)

// A listener is one server of the API, or of the control socket.
type listener struct {
	url    string // unix:///path or https://host:port; empty for control
	addr   string // path or host:port
	server *http.Server

	inherited net.Listener // that a service manager holds too; nil otherwise
}

// serve runs a server on a listener until the end of the proxy.
func (d *Daemon) serve(l *listener, ln net.Listener) {
	d.Go(func() {
		var err error
		if l.server.TLSConfig != nil {
			err = l.server.ServeTLS(proxy.Listener(ln), "", "")
		} else {
			err = l.server.Serve(ln)
		}
		if !errors.Is(err, http.ErrServerClosed) && !(d.leaving.Load() && errors.Is(err, net.ErrClosed)) {
			d.log.Error("listener failed", "address", l.addr, "error", err)
			d.end(causeFailed)
		}
	})
}

func (d *Daemon) listenUnix(ctx context.Context, path string) error {
	if err := d.hold(ctx, path); err != nil {
		return err
	}
	ln, err := socket.ListenConfig{Logger: d.log}.Listen(path)
	if err != nil {
		return err
	}
	d.serveUnix(path, ln)
	return d.serveControl(path)
}

func (d *Daemon) serveUnix(path string, ln net.Listener) *listener {
	srv := proxy.NewServer(d.handler((*front).onUnix), d.serverOptions((*front).ofUnix))
	srv.TLSConfig = d.session.unixConfig(d.names)
	l := &listener{url: "unix://" + path, addr: path, server: srv}
	d.add(l)
	d.serve(l, d.life.count(ln))
	return l
}

// handler has the front of the moment answer.
func (d *Daemon) handler(side func(*front) http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.checkup.asks(r) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if d.leaving.Load() {
			// The last answer on this connection (RFC 9112, section 9.6; net/http makes a GOAWAY of
			// it): the next request finds who comes after us.
			w.Header().Set("Connection", "close")
		}
		f := d.enter()
		defer f.leave()
		side(f).ServeHTTP(w, r)
	})
}

func (d *Daemon) serverOptions(side func(*front) *proxy.Streams) proxy.ServerOptions {
	return proxy.ServerOptions{Plane: d.plane(side), Flood: d.floods.count, Logger: d.log}
}

// plane has the front of the moment pass on what comes over HTTP/2.
func (d *Daemon) plane(side func(*front) *proxy.Streams) proxy.Plane {
	return func(c *h2.Conn) (*proxy.Streams, func()) {
		if d.leaving.Load() {
			c.Shutdown() // the next request finds who comes after us
		}
		f := d.enter()
		return side(f), f.left
	}
}

func (f *front) onUnix() http.Handler     { return f.unix }
func (f *front) onLoopback() http.Handler { return f.loopback }

func (f *front) ofUnix() *proxy.Streams     { return f.unixStreams }
func (f *front) ofLoopback() *proxy.Streams { return f.loopbackStreams }

// hold takes the lock under which a socket is made and unlinked. A proxy of the
// same place that is ending has it until it is gone.
func (d *Daemon) hold(ctx context.Context, path string) error {
	if _, err := d.opt.Places.open(filepath.Dir(path)); err != nil {
		return err
	}
	if err := socket.CheckPath(controlPath(path)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.config.DrainTimeout+lockTimeout)
	defer cancel()
	lock, err := socket.Acquire(ctx, lifePath(path))
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			if path == d.opt.Places.Socket(d.opt.ID) {
				return fmt.Errorf("proxy %s runs already, with the same configuration; end it with `execproxy stop %s`", d.opt.ID, d.opt.ID)
			}
			return fmt.Errorf("another proxy serves at %s; end it with `execproxy stop --all`, or name another socket with --listen", path)
		}
		return err
	}
	d.mu.Lock()
	d.locks = append(d.locks, lock)
	d.mu.Unlock()
	return nil
}

// listenControl makes a control socket that stands beside no API socket.
func (d *Daemon) listenControl(ctx context.Context, path string) error {
	if err := d.hold(ctx, path); err != nil {
		return err
	}
	return d.serveControl(path)
}

func (d *Daemon) serveControl(apiSocket string) error {
	ln, err := socket.ListenConfig{Logger: d.log}.Listen(controlPath(apiSocket))
	if err != nil {
		return err
	}
	l := &listener{addr: controlPath(apiSocket), server: d.ownServer(d.controlHandler())}
	d.add(l)
	d.serve(l, ln)
	return nil
}

// ownServer serves what is not the API: short questions, short answers.
func (d *Daemon) ownServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second,
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}
}

// listenLoopback serves a loopback address, once, and returns it with its port.
func (d *Daemon) listenLoopback(addr string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.listeners {
		if l.addr == addr {
			return addr, nil
		}
	}
	if d.closing {
		return "", errEnding
	}
	cfg, err := d.session.loopbackConfig()
	if err != nil {
		return "", err
	}
	ln, err := socket.ListenConfig{Logger: d.log}.ListenLoopback(addr)
	if err != nil {
		return "", err
	}
	return d.serveLoopback(ln, cfg).addr, nil
}

// serveLoopback needs mu.
func (d *Daemon) serveLoopback(ln net.Listener, cfg *tls.Config) *listener {
	addr := ln.Addr().String()
	srv := proxy.NewServer(d.handler((*front).onLoopback), d.serverOptions((*front).ofLoopback))
	srv.TLSConfig = cfg
	l := &listener{url: "https://" + addr, addr: addr, server: srv}
	d.listeners = append(d.listeners, l)
	d.serve(l, d.life.count(ln))
	return l
}

func (d *Daemon) add(l *listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listeners = append(d.listeners, l)
}

// urls is what the API is served at.
func (d *Daemon) urls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := []string{}
	for _, l := range d.listeners {
		if l.url != "" {
			out = append(out, l.url)
		}
	}
	return out
}

// Loopback is the host:port of the first loopback listener, if there is one.
func (d *Daemon) Loopback() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.listeners {
		if host, ok := strings.CutPrefix(l.url, "https://"); ok {
			return host
		}
	}
	return ""
}

// lockTimeout is how long a start waits for a proxy that is ending, besides what
// it gives its requests.
const lockTimeout = 5 * time.Second
