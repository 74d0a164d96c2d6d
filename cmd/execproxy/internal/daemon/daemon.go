// Package daemon is the life of one proxy: it puts the parts together, starts it
// as a process of its own where that is wanted, speaks with the plugins that ask
// for it, and ends it.
package daemon

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/keyhome"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/systemd"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/proxy/socket"
)

// Options are what a proxy is told by how it was started.
type Options struct {
	ID      string
	Life    string
	Idle    time.Duration // without locks, the time without a client after which it ends; 0: never
	Places  Places
	Environ []string
	PIN     []byte // what the plugin asked for, or was given

	Credential *clientauthentication.Status // what the plugin got from its user; nil: we get it

	// Terminal says that whoever is at the terminal, if there is one, may be asked.
	Terminal bool

	Sockets  []string // API sockets
	Loopback []string // host:port; port 0 is any
	// AnyLoopback is what to serve where there is no other loopback listener, nil: nothing.
	AnyLoopback func() (string, error)
	Fixed       bool // no other loopback listener is opened when a plugin asks
	Patient     bool // an API server that does not answer yet does not keep it from starting

	Version   string
	LogWriter io.Writer
	Ready     func(*Daemon) error // called once everything accepts
	Hurry     <-chan struct{}     // closed: stop draining
	NoDrain   bool                // the end of the context cuts

	// Manager is the service manager that started the process, nil without one. What
	// it passed is served.
	Manager *systemd.Manager
	// Reload reads the configuration anew, nil where there is nothing to read. Hangup
	// asks for it; so does a change of the configuration's file.
	Reload func() (*config.Config, error)
	Hangup <-chan os.Signal
}

// A StartError kept a proxy from becoming ready. Its text is its cause's.
type StartError struct{ Err error }

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// A Daemon is one running proxy.
type Daemon struct {
	opt     Options
	config  *config.Config // of the start: what a reload cannot change is read from it
	log     *slog.Logger
	level   *slog.LevelVar
	started time.Time

	front   atomic.Pointer[front]
	homes   keyhome.Options
	life    *life
	session *session
	handed  handed   // of a daemon without a proxy
	names   []string // what the Unix socket's certificate is for
	checkup *checkup // asks our own listeners
	leaving atomic.Bool

	hasSuccessor bool // whoever comes next serves the same sockets

	reloading sync.Mutex
	said      atomic.Pointer[config.Config] // the last one that was taken over
	reloaded  atomic.Pointer[ReloadStatus]

	background sync.WaitGroup  // what Go started
	work       context.Context // ends with the proxy, before it waits for anything
	cancel     context.CancelFunc
	ending     chan cause
	ready      chan struct{} // closed once the start is over, well

	mu        sync.Mutex
	closing   bool
	listeners []*listener
	locks     []*socket.Lock
	cleanups  []func()
	warnings  []string
	metrics   string   // URL
	former    []*front // that still serve somebody
	past      figures  // of those that are closed

	obtentions obtentions
	floods     floods // by clients

	upstreamFloods floods
}

// Run runs a proxy until ctx ends, its life is over or it is asked to stop. An
// error before Ready was called is a *StartError.
func Run(ctx context.Context, c *config.Config, o Options) error {
	d := &Daemon{opt: o, config: c, started: time.Now(), ending: make(chan cause, 1), ready: make(chan struct{})}
	d.level = &slog.LevelVar{}
	d.log = newLogger(o.LogWriter, c, d.level)
	d.said.Store(c)
	// golang.org/x/net/http2 knows no other place for what a peer did wrong.
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(d.log.Handler(), slog.LevelDebug).Writer())
	if err := harden(o.Life != lifeRun); err != nil {
		return &StartError{err}
	}
	d.work, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	d.life = newLife(o.Idle, d.end)
	if err := d.start(ctx); err != nil {
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
	d.tell("STOPPING=1", "STATUS=ending: "+string(why))
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
func (d *Daemon) start(ctx context.Context) error {
	homes, err := Homes(d.opt.Places, d.opt.Environ)
	if err != nil {
		return err
	}
	homes.PIN, homes.Ask, homes.Detached = d.opt.PIN, d.opt.Terminal, !d.opt.Terminal
	d.homes = homes
	if d.opt.Life == lifeDirect {
		return d.startDirect(ctx)
	}
	if d.session, err = d.openSession(); err != nil {
		return err
	}
	d.names = serverNames(d.config)
	if err := d.session.own.CheckNames(d.names); err != nil {
		return &config.FieldError{Field: "server, tls-server-name", Err: err}
	}
	if d.checkup, err = newCheckup(); err != nil {
		return err
	}
	f, err := d.open(ctx, d.config, homes)
	if err != nil {
		return err
	}
	d.front.Store(f)
	d.Warn(f.id.warnings...)
	if err := f.begin(); err != nil { // before anybody asks for the status
		return err
	}
	if err := d.inherit(ctx); err != nil {
		return err
	}
	for _, path := range d.opt.Sockets {
		if d.listens(path) {
			continue // it was passed
		}
		if err := d.listenUnix(ctx, path); err != nil {
			return err
		}
	}
	if !slices.Contains(d.opt.Sockets, d.opt.Places.Socket(d.opt.ID)) {
		// Another place for the control socket, where `status` and `stop` look.
		if err := d.listenControl(ctx, d.opt.Places.Socket(d.opt.ID)); err != nil {
			return err
		}
	}
	if d.opt.AnyLoopback != nil && d.Loopback() == "" && len(d.opt.Loopback) == 0 {
		addr, err := d.opt.AnyLoopback()
		if err != nil {
			return err
		}
		d.opt.Loopback = []string{addr}
	}
	for _, addr := range d.opt.Loopback {
		if _, err := d.listenLoopback(addr); err != nil {
			return d.whoListens(addr, err)
		}
	}
	if addr := d.config.MetricsAddress; addr != "" {
		if err := d.listenMetrics(addr); err != nil {
			return err
		}
	}
	d.life.begin()
	if d.opt.Ready != nil {
		if err := d.opt.Ready(d); err != nil {
			return err
		}
	}
	d.obtentions.recall(failurePath(d.opt.Places, d.opt.ID))
	d.log.Info("ready", "version", d.opt.Version, "id", d.opt.ID, "server", d.config.Server, "auth", d.config.Auth, "identity", f.id.name(), "listen", d.urls())
	close(d.ready)
	if err := letGoOfStart(); err != nil {
		d.log.Debug("the start's memory is kept", "error", err)
	}
	d.supervised()
	d.followConfiguration()
	return nil
}

// Ending is closed when the proxy no longer serves and waits for what Go began.
func (d *Daemon) Ending() <-chan struct{} { return d.work.Done() }

// Go runs f in a goroutine that the end of the proxy waits for.
func (d *Daemon) Go(f func()) { d.background.Go(f) }

// Cleanup has f called at the end of the proxy, last added first.
func (d *Daemon) Cleanup(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cleanups = append(d.cleanups, f)
}

// Warn tells the log and `execproxy status`.
func (d *Daemon) Warn(texts ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range texts {
		if slices.Contains(d.warnings, t) {
			continue // told; every plugin may find the same
		}
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
	if f := d.front.Load(); f != nil {
		f.cut()
	}
	d.cancel()
	d.background.Wait()
	if f := d.front.Load(); f != nil {
		f.close()
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

// drain lets requests end until the deadline. Watches and followed logs have no
// end of their own and are not waited for; upgraded connections get the time.
func (d *Daemon) drain(listeners []*listener) {
	timeout := d.said.Load().DrainTimeout
	d.tell(extend(timeout))
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
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
	d.sendAway(ctx, timeout)
	var all sync.WaitGroup
	for _, l := range listeners {
		all.Go(func() { _ = l.server.Shutdown(ctx) })
	}
	d.front.Load().endWatches()
	all.Wait()
	d.until(ctx, timeout, func() bool { return d.upgrades() == 0 }) // http.Server knows nothing of them
}

// newLogger logs as the configuration says. What cannot be written is lost: a
// full disk must not stop a proxy.
func newLogger(w io.Writer, c *config.Config, level *slog.LevelVar) *slog.Logger {
	if w == nil {
		w = os.Stderr
	}
	setLevel(level, c)
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

func setLevel(v *slog.LevelVar, c *config.Config) {
	var level slog.Level
	if c.LogLevel != "" {
		_ = level.UnmarshalText([]byte(c.LogLevel)) // checked by config
	}
	v.Set(level)
}
