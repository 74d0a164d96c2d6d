package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/execproxy/execproxy/signer/refresh"
)

// How credentials are kept.
const (
	DefaultTimeout      = 15 * time.Second // for one attempt to get one
	DefaultRefreshAhead = time.Minute      // before it expires

	calm = 10 * time.Minute // without a refusal, after which the next one counts as the first
)

// ErrExpired says that a credential's time is over.
var ErrExpired = errors.New("the credential has expired")

// A Source hands out a credential. It respects its context and puts no secret into errors.
type Source interface {
	Credential(ctx context.Context) (*Credential, error)
}

// SourceFunc is a Source.
type SourceFunc func(ctx context.Context) (*Credential, error)

// Credential calls f.
func (f SourceFunc) Credential(ctx context.Context) (*Credential, error) { return f(ctx) }

// Options configure New.
type Options struct {
	Timeout      time.Duration    // 0: DefaultTimeout
	RefreshAhead time.Duration    // 0: DefaultRefreshAhead; at most half of what a credential lives
	Logger       *slog.Logger     // nil: silence
	Clock        func() time.Time // nil: time.Now
}

// An Error says that there is no credential to be had now. StatusCode makes it a 503 for
// the client.
type Error struct{ Err error }

func (e *Error) Error() string { return "get a credential: " + e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// StatusCode is the HTTP status for the client: 503, as it may pass.
func (e *Error) StatusCode() int { return http.StatusServiceUnavailable }

// A Cache gets credentials ahead of expiry. Its methods are safe for concurrent use.
type Cache struct {
	kept *refresh.Cache[*Credential]

	mu       sync.Mutex // of what follows
	refusals int        // in a row that led to an attempt
	refused  time.Time  // when the last of them came
}

// New returns a cache in front of source. It does not call source yet.
func New(source Source, o Options) *Cache {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.RefreshAhead <= 0 {
		o.RefreshAhead = DefaultRefreshAhead
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Cache{kept: refresh.New(refresh.Options[*Credential]{
		Timeout: o.Timeout, Ahead: o.RefreshAhead, Clock: o.Clock,
		Source:  source.Credential,
		Expires: func(k *Credential) time.Time { return k.Expires },
		Check: func(k *Credential, now time.Time) error {
			if err := k.Check(now); err != nil {
				return fmt.Errorf("what was handed out cannot be used: %w", err)
			}
			return nil
		},
		Explain: func(err error, late bool) error {
			var known *Error
			switch {
			case err == nil:
				return &Error{ErrExpired}
			case late && !errors.Is(err, context.DeadlineExceeded):
				err = fmt.Errorf("gave up after %s: %w", o.Timeout, err)
			}
			if errors.As(err, &known) {
				return err
			}
			return &Error{err}
		},
		Kept: func(k *Credential) { o.Logger.Debug("got a credential", slog.Any("credential", k)) },
		Failed: func(err error, serves bool, retryAt time.Time) {
			o.Logger.Warn("the credential was not refreshed", slog.Any("error", err),
				slog.Bool("oldOneServes", serves), slog.Time("retry", retryAt))
		},
	})}
}

// Credential returns a valid credential: the one at hand, or else a new one. While an
// attempt fails the one at hand serves, as long as it is valid. It fails with an *[Error],
// or with ctx.Err() if ctx ends first.
func (c *Cache) Credential(ctx context.Context) (*Credential, error) { return c.kept.Get(ctx) }

// Put takes over a credential that somebody else got, and reports what is wrong with it.
func (c *Cache) Put(ctx context.Context, k *Credential) error { return c.kept.Put(ctx, k) }

// Stale reports that the credential at hand was refused, and that no other has been got
// since.
func (c *Cache) Stale() bool { return c.kept.Stale() }

// Run gets credentials ahead of expiry until ctx ends, and returns nil then. With it,
// requests do not wait. changed, if not nil, is called with each new one.
func (c *Cache) Run(ctx context.Context, changed func(*Credential)) error {
	c.kept.Run(ctx, changed)
	return nil
}

// Refused is told that the API server did not take the credential that was in use at a
// time. It reports whether another try is worth it: another credential is at hand since, or
// the next call of Credential, or Run, gets one. After the first refusal that is at once;
// when they go on, the pauses between attempts double up to a minute, so that a server that
// takes nothing does not become a storm of calls.
func (c *Cache) Refused(at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.kept.Look()
	now := c.kept.Now()
	if !ok {
		return false
	}
	if s.Got.After(at.Round(0)) {
		return true
	}
	if c.kept.Stale() {
		return !now.Before(s.RetryAt) // with those who were refused at the same time
	}
	since := now.Sub(c.refused)
	if since >= calm || since < 0 {
		c.refusals = 0
	}
	if c.refusals > 0 && since < refresh.Doubled(c.refusals) {
		return false
	}
	c.refusals++
	c.refused = now
	c.kept.Invalidate()
	return true
}
