package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

const (
	// lead is how long before a document expires a new one is asked for, while the
	// old one is used on.
	lead = 30 * time.Second

	// After failures in a row the plugin is not executed for firstRest, then twice
	// that, and so on up to longestRest.
	firstRest   = 100 * time.Millisecond
	longestRest = 30 * time.Second
)

// A session is one document of the plugin.
type session struct {
	cred     *clientauthentication.ExecCredential
	path     string
	tls      *tls.Config
	expires  time.Time // the document; zero: never
	notAfter time.Time // the client certificate; zero: there is none
	plugin   *child
}

// same reports whether s and t name the same proxy and the same pair.
func (s *session) same(t *session) bool {
	a, b := s.cred.Status, t.cred.Status
	return s.path == t.path &&
		a.ClientCertificateData == b.ClientCertificateData && a.ClientKeyData == b.ClientKeyData &&
		bytes.Equal(a.ProxyConfig.CertificateAuthorityData, b.ProxyConfig.CertificateAuthorityData)
}

// end is when a new document is needed; zero: never.
func (s *session) end() time.Time {
	// The proxy that the plugin itself is goes on; another execution would only
	// make a second one.
	if s.expires.IsZero() || s.plugin.running() {
		return s.notAfter
	}
	if !s.notAfter.IsZero() && s.notAfter.Before(s.expires) {
		return s.notAfter
	}
	return s.expires
}

// A flight is an execution of the plugin that is under way. session and err are set
// when done is closed.
type flight struct {
	done    chan struct{}
	session *session
	err     error
}

// session returns the present session, or the next one if there is none or it has
// ended.
func (c *Client) session(ctx context.Context) (*session, error) {
	c.mu.Lock()
	if s := c.current; s != nil && !c.closed {
		end := s.end()
		left := time.Until(end)
		if end.IsZero() || left > 0 {
			if !end.IsZero() && left < lead && time.Now().After(c.retry) {
				c.fly()
			}
			c.mu.Unlock()
			return s, nil
		}
	}
	f := c.fly()
	c.mu.Unlock()
	return f.wait(ctx)
}

// renew returns the session after old, which is of no use any more.
func (c *Client) renew(ctx context.Context, old *session) (*session, error) {
	c.mu.Lock()
	if c.current == old {
		c.current = nil
	}
	c.mu.Unlock()
	return c.session(ctx)
}

// fail says that s, fresh from the plugin, is of no use.
func (c *Client) fail(s *session, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == s {
		c.current = nil
		c.rest(err)
	}
}

// rest counts a failure. c.mu is held.
func (c *Client) rest(err error) {
	rest := min(firstRest<<min(c.fails, 16), longestRest)
	c.fails++
	c.failure, c.retry = err, time.Now().Add(rest)
}

// well says that a session was of use.
func (c *Client) well() {
	c.mu.Lock()
	c.fails, c.failure, c.retry = 0, nil, time.Time{}
	c.mu.Unlock()
}

// fly executes the plugin, unless that is being done or must not be. c.mu is held.
func (c *Client) fly() *flight {
	if c.flight != nil {
		return c.flight
	}
	f := &flight{done: make(chan struct{})}
	if c.closed {
		f.err = ErrClosed
	} else if rest := time.Until(c.retry); rest > 0 {
		f.err = fmt.Errorf("next attempt in %v, after %d failed: %w", rest.Round(time.Millisecond), c.fails, c.failure)
	}
	if f.err != nil {
		close(f.done)
		return f
	}
	c.flight = f
	before := c.current
	// Not with the context of whoever came first: others wait as well.
	c.tasks.Go(func() {
		s, err := c.obtain(before)
		if c.o.Executed != nil && !errors.Is(err, ErrClosed) {
			c.o.Executed(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.flight = nil
		if c.closed {
			s, err = nil, ErrClosed
		}
		if err != nil {
			c.log.Warn("executing plugin", "command", c.o.Command, "err", err)
			c.rest(err)
		} else {
			c.current = s
			c.log.Debug("plugin answered", "command", c.o.Command, "socket", s.path, "expires", s.expires, "stays", s.plugin.running())
		}
		f.session, f.err = s, err
		close(f.done)
	})
	return f
}

func (f *flight) wait(ctx context.Context) (*session, error) {
	select {
	case <-f.done:
		return f.session, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the plugin: %w", ctx.Err())
	}
}

// obtain executes the plugin and reads its document.
func (c *Client) obtain(before *session) (*session, error) {
	cred, plugin, err := c.run()
	if err != nil {
		return nil, err
	}
	s, err := c.newSession(cred, plugin, before)
	if err != nil {
		return nil, plugin.fail(err)
	}
	return s, nil
}
