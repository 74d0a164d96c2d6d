package daemon

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/systemd"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// Signals turns SIGTERM and SIGINT into the end of a context, after which
// requests may end, and a second one into hurry. SIGHUP is ignored, but by who
// asks for it.
func Signals(parent context.Context) (ctx context.Context, hurry <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	again := make(chan struct{})
	sig := make(chan os.Signal, 4)
	if len(hangup) > 0 { // none means all
		signal.Ignore(hangup...)
	}
	// Caught, so that a reader of our output who goes away is an error of a write
	// and not our death, which would leave the sockets behind. Ignored it would
	// stay in the programs that the AWS SDK runs.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	signal.Notify(sig, syscall.SIGTERM, os.Interrupt)
	done := make(chan struct{})
	quit := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-sig:
			cancel()
		case <-quit:
			return
		}
		select {
		case <-sig:
			close(again)
		case <-quit:
		}
	}()
	return ctx, again, func() { signal.Stop(sig); signal.Stop(pipe); close(quit); <-done; cancel() }
}

// Hooks are what Serve asks its caller for.
type Hooks struct {
	Ready    func(*Daemon) error
	Reload   func() (*config.Config, error) // reads the configuration anew
	Loopback func() (string, error)         // host:port, where one is needed and none was named; nil: none is
}

// Serve runs a proxy in the foreground, on the listeners that the configuration
// names and those that a service manager passed.
func Serve(ctx context.Context, c *config.Config, p Places, environ []string, version string, log io.Writer, h Hooks) error {
	ctx, hurry, stop := Signals(ctx)
	defer stop()
	var hangups chan os.Signal
	if len(hangup) > 0 { // none means all
		hangups = make(chan os.Signal, 1)
		signal.Notify(hangups, hangup...) // while it drains, too: it would be the end otherwise
		defer signal.Stop(hangups)
	}
	m, err := systemd.Take(func(name string) string { return variable(environ, name) })
	if err != nil {
		return err
	}
	defer m.Close()
	environ = systemd.Forget(environ)
	for _, name := range systemd.Variables { // the AWS SDK starts programs with this one
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	o := Options{
		Life: lifeServe, Places: p, Environ: environ, Terminal: true, Fixed: true, Patient: true,
		Version: version, LogWriter: log, Hurry: hurry, Ready: h.Ready,
		Manager: m, Reload: h.Reload, Hangup: hangups, AnyLoopback: h.Loopback,
	}
	o.ID = serveID(c, environ)
	if o.Sockets, o.Loopback, err = c.Listeners(); err != nil {
		return err
	}
	if len(c.Listen) == 0 && h.Loopback == nil && !m.Listens() {
		o.Sockets = []string{p.Socket(o.ID)}
	}
	log, shut, err := logWriter(c, log)
	if err != nil {
		return err
	}
	defer shut()
	o.LogWriter = log
	if c.LockFile != "" {
		next := o.Ready
		o.Ready = func(d *Daemon) error {
			if err := d.life.register(c.LockFile); err != nil {
				return err
			}
			return next(d)
		}
	}
	return Run(ctx, c, o)
}

// serveID tells apart what may serve side by side: the same identity at other
// addresses, or for another kubeconfig.
func serveID(c *config.Config, environ []string) string {
	return ID(c, environ, strings.Join(append([]string{lifeServe, c.KubeconfigOut}, c.Listen...), " "))
}

// Private runs a proxy for one client of ours: it begins with ready, and the end
// of ctx cuts it.
func Private(ctx context.Context, c *config.Config, p Places, environ []string, version string, log io.Writer, ready func(*Daemon) error) error {
	if c.LogLevel == "" {
		c.LogLevel = "warn" // standard error is the client's
	}
	log, shut, err := logWriter(c, log)
	if err != nil {
		return err
	}
	defer shut()
	sweep(p)
	o := Options{
		ID: fmt.Sprintf("run-%d", os.Getpid()), Life: lifeRun, Places: p, Environ: environ, Terminal: true, Fixed: true, NoDrain: true,
		Version: version, LogWriter: log, Ready: ready,
	}
	if _, o.Loopback, err = c.Listeners(); err != nil {
		return err
	}
	return Run(ctx, c, o)
}

// Foreground is the plugin that becomes the proxy itself: it answers, lets go of
// its standard streams, and serves until the parent's lock comes free.
func (p *Plugin) Foreground(ctx context.Context, answer func(*clientauthentication.Status) error) error {
	pin, err := p.unlock(ctx) // it may be in a descriptor that was inherited
	if err != nil {
		return err
	}
	c, places, ask := p.Config, p.Places, p.Ask
	var given *clientauthentication.Status
	if p.Login != nil {
		if given, err = p.Login(ctx); err != nil {
			return err
		}
	}
	if err := CloseInherited(); err != nil {
		return fmt.Errorf("closing inherited descriptors: %w", err)
	}
	if err := probe(ask.LockFile); err != nil {
		return err
	}
	ctx, hurry, stop := Signals(ctx)
	defer stop()
	// The identity's own name and this process's: every such proxy is its own. The
	// log is the identity's: one for each process would fill the disk.
	name := ID(c, p.Environ, lifeLock)
	id := fmt.Sprintf("%s-%d", name, os.Getpid())
	log, err := openDaemonLog(c, places, name)
	if err != nil {
		return err
	}
	defer log.Close()
	sweep(places)
	return Run(ctx, c, Options{
		ID: id, Life: lifeLock, Idle: c.IdleTimeout, Places: places, Environ: p.Environ, Sockets: []string{places.Socket(id)},
		PIN: pin, Credential: given, Version: p.Version, LogWriter: log, Hurry: hurry,
		Ready: func(d *Daemon) error {
			s, err := d.document(ctx, ask)
			if err != nil {
				return err
			}
			if err := answer(s); err != nil {
				return fmt.Errorf("answering the client: %w", err)
			}
			// From here on the lock decides: a client that shares its terminal with
			// us may well live on after Ctrl-C.
			signal.Ignore(os.Interrupt)
			return leaveStdio(log)
		},
	})
}

// logWriter is the configured log file, or the stream that a foreground process
// logs to.
func logWriter(c *config.Config, stream io.Writer) (io.Writer, func(), error) {
	if c.LogFile == "" {
		return stream, func() {}, nil
	}
	f, err := openLog(c.LogFile)
	if err != nil {
		return nil, nil, err
	}
	return f, func() { f.Close() }, nil
}
