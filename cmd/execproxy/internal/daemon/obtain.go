package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/lockfile"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/proxy/socket"
)

// startTimeout bounds a plugin: a client waits for it without any timeout of its
// own. It is longer than one dial of the API server.
const startTimeout = 30 * time.Second

// A Plugin is one call of the exec credential plugin.
type Plugin struct {
	Config  *config.Config
	Places  Places
	Environ []string
	Version string
	Ask     Ask

	// Login runs the plugin behind the proxy where it can speak with the user; nil where
	// there is none, or no user.
	Login func(context.Context) (*clientauthentication.Status, error)

	// Unlock asks for what unlocks the key, where only this process can be told:
	// the daemon has no terminal and none of our descriptors. nil, or no bytes:
	// there is nothing to ask.
	Unlock func(context.Context) ([]byte, error)
}

// askTimeout bounds the waiting for another plugin, which may be asking the user.
const askTimeout = 3 * time.Minute

// Obtain answers for a detached proxy: the one that runs for this cluster and
// identity, or else a new one. Starting is single-flight over all processes of
// this user; losers wait for the winner's proxy.
func (p *Plugin) Obtain(parent context.Context) (*clientauthentication.Status, error) {
	ctx, cancel := context.WithTimeout(parent, startTimeout)
	defer cancel()
	if err := p.Ask.settle(); err != nil {
		return nil, err
	}
	if err := probe(p.Ask.LockFile); err != nil {
		return nil, err
	}
	environ := p.Environ
	if cwd, err := os.Getwd(); err == nil {
		environ = settled(environ, cwd)
	}
	life := lifeIdle
	switch {
	case p.Ask.Direct:
		life = lifeDirect
	case p.Ask.LockFile != "":
		life = lifeLock
	}
	p.Ask.Interactive = p.Login != nil
	id := ID(p.Config, environ, life)
	dir, err := p.Places.open(p.Places.Runtime)
	if err != nil {
		return nil, err
	}
	path := p.Places.Socket(id)
	if err := socket.CheckPath(controlPath(path)); err != nil {
		return nil, err
	}
	ctl := newController(path)
	if s, err := running(ctx, ctl, p.Ask); !p.goesOn(err) {
		return s, err
	}
	// Whoever starts it may be asking the user for a PIN.
	waiting, cancelWaiting := context.WithTimeout(parent, askTimeout)
	defer cancelWaiting()
	start, err := socket.Acquire(waiting, startPath(path))
	if err != nil {
		return nil, fmt.Errorf("waiting for another start of the proxy in %s, which may be asking for a PIN: %w", dir.Path(), err)
	}
	defer start.Remove()
	ctx, cancelAgain := context.WithTimeout(parent, startTimeout)
	defer cancelAgain()
	s, absent := running(ctx, ctl, p.Ask)
	if !p.goesOn(absent) {
		return s, absent
	}
	memo := &memo{path: memoPath(p.Places, id)}
	if err := p.login(parent, memo); err != nil {
		return nil, err
	}
	if !errors.Is(absent, errNobody) { // it wants what the user just gave
		ctx, cancel := context.WithTimeout(parent, startTimeout)
		defer cancel()
		return running(ctx, ctl, p.Ask)
	}
	order := &order{ID: id, Life: life, Places: p.Places, Config: p.Config, Ask: p.Ask}
	order.Ask.Client = 0   // it has not been answered yet
	p.Ask.Credential = nil // once is enough
	if order.PIN, err = p.once(parent, memo); err != nil {
		return nil, err
	}
	// Whoever was asked took their time.
	ctx, cancelStart := context.WithTimeout(parent, startTimeout)
	defer cancelStart()
	err = spawn(ctx, order, environ)
	if err != nil && (len(order.PIN) > 0 || handedOut(p.Config)) {
		memo.write(err)
	}
	clear(order.PIN)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(memo.path) // mostly there is none
	s, err = running(ctx, ctl, p.Ask)
	if errors.Is(err, errNobody) {
		return nil, fmt.Errorf("the proxy ended right after its start; its log is %s", logPath(p.Config, p.Places, id))
	}
	return s, err
}

// goesOn reports that there is something to do: nothing runs, or what runs wants what
// only the user can give, and the user is there.
func (p *Plugin) goesOn(err error) bool {
	var r *refusal
	return errors.Is(err, errNobody) || p.Login != nil && errors.As(err, &r) && r.Login
}

// login has the user's plugin run here, which has the terminal, and takes what it handed
// out along. Not again for the same client after that went wrong.
func (p *Plugin) login(ctx context.Context, m *memo) error {
	if p.Login == nil {
		return nil
	}
	if err := m.read(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var err error
	if p.Ask.Credential, err = p.Login(ctx); err != nil {
		m.write(err)
	}
	return err
}

// once asks for what unlocks the key, and not again for the same client after that
// went wrong: kubectl runs its plugin five times in a row, and a token locks itself
// after three.
func (p *Plugin) once(ctx context.Context, m *memo) ([]byte, error) {
	if err := m.read(); err != nil {
		return nil, err
	}
	pin, err := p.unlock(ctx)
	if err != nil {
		m.write(err)
	}
	return pin, err
}

func (p *Plugin) unlock(ctx context.Context) ([]byte, error) {
	if p.Unlock == nil {
		return nil, nil
	}
	return p.Unlock(ctx)
}

// settle completes the lock's path: a daemon has another directory than the
// client.
func (a *Ask) settle() (err error) {
	if a.LockFile != "" {
		if a.LockFile, err = filepath.Abs(a.LockFile); err != nil {
			return fmt.Errorf("lock file: %w; name it by an absolute path", err)
		}
	}
	return nil
}

// probe refuses a lock that nobody holds, before anything is started for it.
func probe(path string) error {
	if path == "" {
		return nil
	}
	l, err := lockfile.Open(path)
	if err != nil {
		return err
	}
	return l.Close()
}

// running asks a running proxy for the document. errNobody: there is none, or it
// is ending and a new one has to wait for it. A proxy that is only busy (a full
// backlog) is asked again.
func running(ctx context.Context, ctl *controller, ask Ask) (*clientauthentication.Status, error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		s, err := ctl.document(ctx, ask)
		var r *refusal
		switch {
		case err == nil:
			return s, nil
		case errors.As(err, &r) && r.Stopping:
			return nil, errNobody
		case errors.As(err, &r), errors.Is(err, errNobody), !busy(err):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the proxy at %s does not answer within %v; end it with `execproxy stop --all`: %w", ctl.path, startTimeout, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// busy reports a proxy that exists and could not take the connection.
func busy(err error) bool {
	var n net.Error
	return errors.Is(err, errAgain) || errors.As(err, &n) && n.Timeout()
}

// Answer asks the proxy that serves at an API socket: `exec --socket`.
func Answer(ctx context.Context, apiSocket string, ask Ask) (*clientauthentication.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := ask.settle(); err != nil {
		return nil, err
	}
	if err := socket.CheckPath(controlPath(apiSocket)); err != nil {
		return nil, err
	}
	s, err := running(ctx, newController(apiSocket), ask)
	if errors.Is(err, errNobody) {
		return nil, fmt.Errorf("no proxy serves at %s; start it with `execproxy serve --listen unix://%s`", apiSocket, apiSocket)
	}
	return s, err
}
