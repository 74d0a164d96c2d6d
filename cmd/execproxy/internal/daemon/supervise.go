package daemon

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/execproxy/execproxy/proxy/socket"
)

// tell tells the service manager.
func (d *Daemon) tell(assignments ...string) {
	if err := d.opt.Manager.Notify(assignments...); err != nil {
		d.log.Warn("the service manager does not hear", "error", err)
	}
}

// extend has the manager wait for what may take long.
func extend(t time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (t + lockTimeout).Microseconds())
}

// line is the one that `systemctl status` shows.
func (d *Daemon) line() string {
	f := d.front.Load()
	s := fmt.Sprintf("%s as %s (%s) at %s", f.config.Server, f.id.name(), f.config.Auth, strings.Join(d.urls(), ", "))
	if r := d.reloaded.Load(); r != nil && r.Error != "" {
		s = "the configuration of now is not used: " + r.Error + "; serving " + s
	}
	return "STATUS=" + s
}

// supervised says that everything accepts, and goes on saying so as long as it does.
func (d *Daemon) supervised() {
	m := d.opt.Manager
	d.tell("READY=1", d.line())
	if !m.Told() || m.Watchdog == 0 {
		return
	}
	d.Go(func() {
		tick := time.NewTicker(m.Watchdog / 2)
		defer tick.Stop()
		for {
			ctx, cancel := context.WithTimeout(d.work, m.Watchdog/2)
			err := d.Healthy(ctx)
			cancel()
			switch {
			case err == nil:
				d.tell("WATCHDOG=1")
			case d.work.Err() == nil && !d.leaving.Load():
				d.log.Error("the watchdog is not told that all is well", "error", err)
			}
			select {
			case <-d.work.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// inherit serves the listening sockets that the service manager passed.
func (d *Daemon) inherit(ctx context.Context) error {
	m := d.opt.Manager
	if m == nil {
		return nil
	}
	defer m.Close()
	d.hasSuccessor = len(m.Passed) > 0
	var paths []string
	for _, p := range m.Passed {
		ln, err := socket.ListenConfig{Logger: d.log}.Inherit(p.File)
		if err != nil {
			return err
		}
		path, err := d.serveInherited(ctx, ln)
		if err != nil {
			_ = ln.Close()
			return err
		}
		if path != "" {
			paths = append(paths, path)
		}
	}
	// What --listen names and was passed, is; the rest is made.
	sockets := append(paths, slices.DeleteFunc(slices.Clone(d.opt.Sockets), d.listens)...)
	d.opt.Loopback = slices.DeleteFunc(slices.Clone(d.opt.Loopback), d.listens)
	d.mu.Lock()
	d.opt.Sockets = sockets // its control socket answers already
	d.mu.Unlock()
	return nil
}

func (d *Daemon) listens(addr string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.listeners {
		if l.url != "" && l.addr == addr {
			return true
		}
	}
	return false
}

// serveInherited serves one, and returns the path of a Unix socket.
func (d *Daemon) serveInherited(ctx context.Context, ln net.Listener) (string, error) {
	u, ok := ln.(*socket.Listener)
	if !ok {
		cfg, err := d.session.loopbackConfig()
		if err != nil {
			return "", err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.serveLoopback(ln, cfg).inherited = ln
		return "", nil
	}
	path := u.Path()
	d.serveUnix(path, u).inherited = ln
	// `exec --socket` asks beside the socket. Where the directory is not ours alone, it
	// cannot.
	err := d.listenControl(ctx, path)
	if err != nil {
		d.Warn(fmt.Sprintf("`execproxy exec --socket %s` will find nobody to ask: %v; give the socket a directory of this user (RuntimeDirectory=)", path, err))
	}
	return path, nil
}

// sendAway has clients leave for whoever serves the same sockets next. Without a
// successor there is nowhere to go.
//
// While upgraded connections are still given time, whoever comes is served, once. Then
// nobody is let in any more: who connects waits for the next process. Only then are idle
// connections closed, which net/http does without regard to a request that is just coming
// in (over HTTP/1.1 it is lost, and a POST is not sent again).
func (d *Daemon) sendAway(ctx context.Context, timeout time.Duration) {
	if !d.hasSuccessor {
		return
	}
	d.leaving.Store(true)
	last := min(timeout/4, time.Second)
	d.until(ctx, last, func() bool { return false })
	d.until(ctx, timeout-3*last, func() bool { return d.upgrades() == 0 })
	d.mu.Lock()
	for _, l := range d.listeners {
		if l.inherited != nil {
			_ = l.inherited.Close()
		}
	}
	d.mu.Unlock()
	d.front.Load().endWatches()
	d.until(ctx, last, func() bool { return d.life.clients() == d.upgrades() })
}

func (d *Daemon) upgrades() int { return d.figures().proxy.OpenUpgrades }

// until waits at most for a time.
func (d *Daemon) until(ctx context.Context, most time.Duration, over func() bool) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !over() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Activated reports whether a service manager holds sockets of ours, at which the next
// proxy will be found.
func (d *Daemon) Activated() bool { return d.hasSuccessor }
