package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/process"
	"github.com/execproxy/execproxy/proxy/socket"
)

// status tells of this proxy.
func (d *Daemon) status() Status {
	f := d.front.Load()
	all := d.figures()
	px, up := all.proxy, all.upstream
	s := Status{
		ID: d.opt.ID, PID: os.Getpid(), Version: d.opt.Version, StartedAt: d.started.UTC().Truncate(time.Second),
		Server: d.config.Server, Auth: f.config.Auth, Identity: f.id.name(),
		Listeners: d.urls(), Life: d.opt.Life, Locks: d.life.paths(), Clients: d.life.clients(),
		Requests: px.Requests, InFlight: px.InFlight, Signatures: all.signatures + up.Signatures,
		Dials: up.Dials, Handshakes: Handshakes{Full: up.FullHandshakes, Resumed: up.ResumedHandshakes},
		CertificateNotAfter: f.id.notAfter(), Key: f.id.keyStatus(), Renewal: f.renewalStatus(),
		Reload: d.reloaded.Load(), Obtentions: d.obtentions.status(),
	}
	d.mu.Lock()
	if len(d.opt.Sockets) > 0 { // where the API is, not only the control socket
		s.Socket = d.opt.Sockets[0]
	}
	s.Warnings, s.Metrics = slices.Clone(d.warnings), d.metrics
	d.mu.Unlock()
	return s
}

// Running asks every proxy of this user for its status. One that ended without
// its socket being removed, or ends meanwhile, is not running.
func Running(ctx context.Context, p Places) []Status {
	if _, err := os.Lstat(p.Runtime); err != nil {
		return nil // nothing was ever started here
	}
	paths, err := filepath.Glob(filepath.Join(globEscape(p.Runtime), "*.sock.ctl"))
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	found := make([]*Status, len(paths))
	var all sync.WaitGroup
	for i, path := range paths {
		all.Go(func() {
			var s Status
			if newController(strings.TrimSuffix(path, ".ctl")).call(ctx, http.MethodGet, pathStatus, nil, &s) == nil {
				found[i] = &s
			}
		})
	}
	all.Wait()
	var out []Status
	for _, s := range found {
		if s != nil {
			out = append(out, *s)
		}
	}
	return out
}

// Reload has every proxy of this user but one look at its key again, and returns
// when they have: a token says nothing when a certificate is stored on it.
func Reload(ctx context.Context, p Places, but string) {
	var all sync.WaitGroup
	for _, s := range Running(ctx, p) {
		if s.ID == but || s.Key == nil {
			continue
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, keyTimeout)
			defer cancel()
			_ = newController(p.Socket(s.ID)).call(ctx, http.MethodPost, pathReload, nil, &struct{}{}) // ended meanwhile, or of an older version
		})
	}
	all.Wait()
}

// Reconfigure has a proxy read its configuration anew, and returns why it did not. read
// is false of one that has nothing to read: a plugin started it and told it all.
func Reconfigure(ctx context.Context, p Places, s Status) (read bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*reloadTimeout)
	defer cancel()
	var done anew
	if err := newController(p.Socket(s.ID)).call(ctx, http.MethodPost, pathAnew, nil, &done); err != nil {
		return false, fmt.Errorf("proxy %s keeps the old configuration: %w", s.ID, err)
	}
	return done.Read, nil
}

// globEscape keeps a directory's own characters from being a pattern.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// Stop ends a proxy and returns once it is gone: it keeps the lock of its life
// until then.
func Stop(ctx context.Context, p Places, s Status) error {
	path := p.Socket(s.ID)
	// Taken hold of while it surely is the proxy; gone before is fine, too.
	var ended func(context.Context) error
	if pid := listenerPID(ctx, controlPath(path), s.PID); pid > 0 && pid != os.Getpid() { // that goes on
		if f, err := process.WatchEnd(pid); err == nil {
			ended = f
		}
	}
	err := newController(path).call(ctx, http.MethodPost, pathStop, nil, &struct{}{})
	if err != nil && !errors.Is(err, errNobody) {
		return fmt.Errorf("stopping proxy %s: %w", s.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	lock, err := socket.Acquire(ctx, lifePath(path))
	if err != nil {
		return fmt.Errorf("proxy %s (pid %d) was asked to end and has not within a minute; kill it: %w", s.ID, s.PID, err)
	}
	if err := lock.Remove(); err != nil {
		return err
	}
	// The lock is the last thing but one that a proxy lets go.
	if ended != nil {
		return ended(ctx)
	}
	return nil
}
