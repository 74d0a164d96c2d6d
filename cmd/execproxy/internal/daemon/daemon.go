// Package daemon is the life of one proxy: it puts the parts together, starts it
// as a process of its own where that is wanted, speaks with the plugins that ask
// for it, and ends it.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/proxy"
	"github.com/execproxy/execproxy/proxy/socket"
	"github.com/execproxy/execproxy/transport"
)

// Options are what a proxy is told by how it was started.
type Options struct {
	ID      string
	Life    string
	Idle    time.Duration // without locks, the time without a client after which it ends; 0: never
	Places  Places
	Environ []string

	Sockets  []string // API sockets
	Loopback []string // host:port; port 0 is any
	Fixed    bool     // no other loopback listener is opened when a plugin asks
	Patient  bool     // an API server that does not answer yet does not keep it from starting

	Version   string
	LogWriter io.Writer
	Ready     func(*Daemon) error // called once everything accepts
	Hurry     <-chan struct{}     // closed: stop draining
	NoDrain   bool                // the end of the context cuts
}

// A StartError kept a proxy from becoming ready. Its text is its cause's.
type StartError struct{ Err error }

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// A Daemon is one running proxy.
type Daemon struct {
	opt     Options
	config  *config.Config
	log     *slog.Logger
	started time.Time

	id       *identity
	upstream *transport.Transport
	proxy    *proxy.Proxy
	life     *life
	session  *session
	names    []string // what the Unix socket's certificate is for

	background sync.WaitGroup // what Go started
	cancel     context.CancelFunc
	ending     chan cause

	mu        sync.Mutex
	closing   bool
	listeners []*listener
	locks     []*socket.Lock
	cleanups  []func()
	warnings  []string
}

// A listener is one server of the API, or of the control socket.
type listener struct {
	url    string // unix:///path or https://host:port; empty for control
	addr   string // path or host:port
	server *http.Server
}

// Run runs a proxy until ctx ends, its life is over or it is asked to stop. An
// error before Ready was called is a *StartError.
func Run(ctx context.Context, c *config.Config, o Options) error {
	d := &Daemon{opt: o, config: c, started: time.Now(), ending: make(chan cause, 1)}
	d.log = newLogger(o.LogWriter, c)
	// golang.org/x/net/http2 knows no other place for what a peer did wrong.
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(d.log.Handler(), slog.LevelDebug).Writer())
	if err := harden(o.Life != lifeRun); err != nil {
		return &StartError{err}
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.cancel = cancel
	d.life = newLife(o.Idle, d.end)
	if err := d.start(ctx, work); err != nil {
		d.shut(causeFailed)
		return &StartError{err}
	}
	var why cause
	select {
	case why = <-d.ending:
	case <-ctx.Done():
		why = causeSignal
	}
	d.log.Info("ending", "cause", string(why))
	d.shut(why)
	d.log.Info("ended", "cause", string(why))
	if why == causeFailed {
		return errors.New("a listener failed; the log says which")
	}
	return nil
}

// end asks the proxy to end; the first cause counts.
func (d *Daemon) end(why cause) {
	select {
	case d.ending <- why:
	default:
	}
}

// start builds everything, dials the API server, listens, and says so.
func (d *Daemon) start(ctx, work context.Context) error {
	var err error
	if d.id, err = newIdentity(ctx, d.config, d.opt.Environ, d.log); err != nil {
		return err
	}
	d.warn(d.id.warnings...)
	if d.session, err = newSession(d.opt.Places); err != nil {
		return err
	}
	if err := d.connect(ctx); err != nil {
		return err
	}
	for _, path := range d.opt.Sockets {
		if err := d.listenUnix(ctx, path); err != nil {
			return err
		}
	}
	if len(d.opt.Sockets) == 0 || d.opt.Sockets[0] != d.opt.Places.Socket(d.opt.ID) {
		// Another place for the control socket, where `status` and `stop` look.
		if err := d.listenControl(ctx, d.opt.Places.Socket(d.opt.ID)); err != nil {
			return err
		}
	}
	for _, addr := range d.opt.Loopback {
		if _, err := d.listenLoopback(addr); err != nil {
			return err
		}
	}
	if addr := d.config.MetricsAddress; addr != "" {
		if err := d.listenMetrics(addr); err != nil {
			return err
		}
	}
	d.Go(func() { d.id.watch(work, d.rotate) })
	d.log.Info("ready", "version", d.opt.Version, "id", d.opt.ID, "server", d.config.Server, "auth", d.config.Auth, "identity", d.id.name(), "listen", d.urls())
	if d.opt.Ready != nil {
		return d.opt.Ready(d)
	}
	return nil
}

// Go runs f in a goroutine that the end of the proxy waits for.
func (d *Daemon) Go(f func()) { d.background.Go(f) }

// Cleanup has f called at the end of the proxy, last added first.
func (d *Daemon) Cleanup(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cleanups = append(d.cleanups, f)
}

func (d *Daemon) warn(texts ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range texts {
		d.warnings = append(d.warnings, t)
		d.log.Warn(t)
	}
}

// shut ends everything that start began, in the opposite order.
func (d *Daemon) shut(why cause) {
	d.mu.Lock()
	d.closing = true
	listeners := d.listeners
	d.mu.Unlock()
	d.life.close()
	if why == causeStop || why == causeSignal && !d.opt.NoDrain {
		d.drain(listeners)
	}
	for _, l := range listeners {
		_ = l.server.Close()
	}
	if d.proxy != nil {
		d.proxy.Close()
	}
	d.cancel()
	d.background.Wait()
	if d.upstream != nil {
		_ = d.upstream.Close()
	}
	if d.id != nil {
		d.id.close()
	}
	d.mu.Lock()
	cleanups, locks := d.cleanups, d.locks
	d.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		f()
	}
	for _, l := range slices.Backward(locks) {
		_ = l.Remove()
	}
}

// drain lets requests end until the deadline. Watches have no end of their own;
// they are cut by it.
func (d *Daemon) drain(listeners []*listener) {
	ctx, cancel := context.WithTimeout(context.Background(), d.config.DrainTimeout)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-d.opt.Hurry:
			cancel()
		case <-stop:
		}
	}()
	var all sync.WaitGroup
	for _, l := range listeners {
		all.Go(func() { _ = l.server.Shutdown(ctx) })
	}
	all.Wait()
}

// serve runs a server on a listener until the end of the proxy.
func (d *Daemon) serve(l *listener, ln net.Listener) {
	d.Go(func() {
		var err error
		if l.server.TLSConfig != nil {
			err = l.server.ServeTLS(ln, "", "")
		} else {
			err = l.server.Serve(ln)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("listener failed", "address", l.addr, "error", err)
			d.end(causeFailed)
		}
	})
}

func (d *Daemon) listenUnix(ctx context.Context, path string) error {
	if err := d.hold(ctx, path); err != nil {
		return err
	}
	ln, err := socket.Listen(path)
	if err != nil {
		return err
	}
	srv := proxy.NewServer(d.proxy.Unix(), d.log)
	srv.TLSConfig = d.session.unixConfig(d.names)
	l := &listener{url: "unix://" + path, addr: path, server: srv}
	d.add(l)
	d.serve(l, d.life.count(ln))
	return d.serveControl(path)
}

// hold takes the lock under which a socket is made and unlinked. A proxy of the
// same place that is ending has it until it is gone.
func (d *Daemon) hold(ctx context.Context, path string) error {
	if _, err := socket.OpenDir(dirOf(path)); err != nil {
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
	ln, err := socket.Listen(controlPath(apiSocket))
	if err != nil {
		return err
	}
	l := &listener{addr: controlPath(apiSocket), server: &http.Server{
		Handler: d.controlHandler(), ReadTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second,
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}}
	d.add(l)
	d.serve(l, ln)
	return nil
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
		return "", &refusal{Message: "the proxy is ending", Stopping: true}
	}
	cfg, err := d.session.loopbackConfig()
	if err != nil {
		return "", err
	}
	ln, err := socket.ListenLoopback(addr)
	if err != nil {
		return "", err
	}
	addr = ln.Addr().String()
	srv := proxy.NewServer(d.proxy.Loopback(), d.log)
	srv.TLSConfig = cfg
	l := &listener{url: "https://" + addr, addr: addr, server: srv}
	d.listeners = append(d.listeners, l)
	d.serve(l, d.life.count(ln))
	return addr, nil
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
		if host, ok := cutScheme(l.url, "https://"); ok {
			return host
		}
	}
	return ""
}

// lockTimeout is how long a start waits for a proxy that is ending, besides what
// it gives its requests.
const lockTimeout = 5 * time.Second

// newLogger logs as the configuration says. What cannot be written is lost: a
// full disk must not stop a proxy.
func newLogger(w io.Writer, c *config.Config) *slog.Logger {
	if w == nil {
		w = os.Stderr
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // checked by config; empty is info
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
