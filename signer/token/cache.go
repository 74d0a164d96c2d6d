package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// How credentials are kept.
const (
	DefaultTimeout      = 15 * time.Second // for one attempt to get one
	DefaultRefreshAhead = time.Minute      // before it expires

	firstPause = time.Second      // after a failed attempt, or a refusal that came to nothing; doubles
	lastPause  = time.Minute      // after many
	calm       = 10 * time.Minute // without a refusal, after which the next one counts as the first
	longestNap = time.Minute      // timers stand still while a machine sleeps, so look at the wall clock
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
	source Source
	o      Options

	state   atomic.Pointer[state]
	turn    chan struct{} // held by whoever makes an attempt
	wake    chan struct{}
	running atomic.Int32 // calls of Run
	stale   atomic.Bool  // it was refused, and no attempt has succeeded since

	mu       sync.Mutex // of what follows, and of a new credential
	refusals int        // in a row that led to an attempt
	refused  time.Time  // when the last of them came
}

// state is what the last attempts yielded. It is never changed, only exchanged.
type state struct {
	credential *Credential // nil: none yet
	got        time.Time   // when
	refreshAt  time.Time   // zero: never by itself
	err        error       // of the last attempt
	failures   int         // in a row
	retryAt    time.Time   // no attempt before; zero after a success
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
	if o.Clock == nil {
		o.Clock = time.Now
	}
	c := &Cache{source: source, o: o, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	c.state.Store(&state{})
	return c
}

// Credential returns a valid credential: the one at hand, or else a new one. While an
// attempt fails the one at hand serves, as long as it is valid. It fails with an *[Error],
// or with ctx.Err() if ctx ends first.
func (c *Cache) Credential(ctx context.Context) (*Credential, error) {
	s := c.state.Load()
	now := c.now()
	if s.valid(now) && !c.due(s, now) {
		return s.credential, nil
	}
	s, err := c.refresh(ctx, s)
	if s.valid(c.now()) {
		return s.credential, nil
	}
	if err == nil { // a success that is over already
		err = &Error{ErrExpired}
	}
	return nil, err
}

// due tells whether Credential itself makes an attempt although there is a valid one.
func (c *Cache) due(s *state, now time.Time) bool {
	if now.Before(s.retryAt) {
		return false
	}
	if c.stale.Load() {
		return true
	}
	return c.running.Load() == 0 && !s.refreshAt.IsZero() && !now.Before(s.refreshAt)
}

// Put takes over a credential that somebody else got, and reports what is wrong with it.
func (c *Cache) Put(ctx context.Context, k *Credential) error {
	if err := k.Check(c.now()); err != nil {
		return &Error{err}
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c.keep(k)
	return nil
}

// keep needs the turn.
func (c *Cache) keep(k *Credential) *state {
	now := c.now()
	s := &state{credential: k, got: now, refreshAt: c.refreshAt(k, now)}
	c.mu.Lock() // a refusal is of the one before or of this one
	c.stale.Store(false)
	c.state.Store(s)
	c.mu.Unlock()
	c.nudge()
	return s
}

func (c *Cache) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Refused is told that the API server did not take the credential that was in use at a
// time. It reports whether another try is worth it: another credential is at hand since, or
// the next call of Credential, or Run, gets one. After the first refusal that is at once;
// when they go on, the pauses between attempts double up to a minute, so that a server that
// takes nothing does not become a storm of calls.
func (c *Cache) Refused(at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, now := c.state.Load(), c.now()
	if s.credential == nil {
		return false
	}
	if s.got.After(at.Round(0)) {
		return true
	}
	if c.stale.Load() {
		return !now.Before(s.retryAt) // with those who were refused at the same time
	}
	since := now.Sub(c.refused)
	if since >= calm || since < 0 {
		c.refusals = 0
	}
	if c.refusals > 0 && since < min(firstPause<<min(c.refusals-1, 10), lastPause) {
		return false
	}
	c.refusals++
	c.refused = now
	c.stale.Store(true)
	c.nudge()
	return true
}

// Stale reports that the credential at hand was refused, and that no other has been got
// since.
func (c *Cache) Stale() bool { return c.stale.Load() }

// Run gets credentials ahead of expiry until ctx ends, and returns nil then. With it,
// requests do not wait. changed, if not nil, is called with each new one.
func (c *Cache) Run(ctx context.Context, changed func(*Credential)) error {
	c.running.Add(1)
	defer c.running.Add(-1)
	last := c.state.Load().credential
	for {
		s, now := c.state.Load(), c.now()
		if s.credential != last && s.credential != nil {
			last = s.credential
			if changed != nil {
				changed(last)
			}
		}
		next := s.refreshAt
		if s.credential == nil || c.stale.Load() {
			next = now
		}
		if next.Before(s.retryAt) && !next.IsZero() {
			next = s.retryAt
		}
		if !next.IsZero() && !now.Before(next) {
			_, _ = c.refresh(ctx, s) // it logs its failures
			if ctx.Err() != nil {
				return nil
			}
			continue
		}
		nap := longestNap
		if !next.IsZero() {
			nap = min(nap, next.Sub(now))
		}
		timer := time.NewTimer(nap)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-c.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// refresh makes an attempt, or takes the result of one that ended after the caller saw
// before. It always returns a state.
func (c *Cache) refresh(ctx context.Context, before *state) (*state, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return before, ctx.Err()
	}
	s, now := c.state.Load(), c.now()
	if s != before || now.Before(s.retryAt) {
		return s, s.err // somebody else's result; after a failure that of everybody for a while
	}
	attempt, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	k, err := c.source.Credential(attempt)
	if err != nil && ctx.Err() != nil {
		return s, ctx.Err() // the caller went away: that says nothing about the source
	}
	if err == nil {
		if err = k.Check(c.now()); err != nil {
			err = fmt.Errorf("what was handed out cannot be used: %w", err)
		}
	}
	if err == nil {
		c.o.Logger.Debug("got a credential", slog.Any("credential", k))
		return c.keep(k), nil
	}
	if attempt.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("gave up after %s: %w", c.o.Timeout, err)
	}
	var known *Error
	if !errors.As(err, &known) {
		err = &Error{err}
	}
	next := &state{
		credential: s.credential, got: s.got, refreshAt: s.refreshAt,
		err: err, failures: s.failures + 1,
	}
	next.retryAt = c.now().Add(pause(next.failures))
	if s.credential != nil { // the first attempt has a caller who is told
		c.o.Logger.Warn("the credential was not refreshed", slog.Any("error", err),
			slog.Bool("oldOneServes", s.valid(c.now())), slog.Time("retry", next.retryAt))
	}
	c.state.Store(next)
	return next, err
}

// refreshAt spreads refreshes over a fifth of the time ahead: many proxies that started
// together do not call together.
func (c *Cache) refreshAt(k *Credential, now time.Time) time.Time {
	if k.Expires.IsZero() {
		return time.Time{}
	}
	ahead := max(0, min(c.o.RefreshAhead, k.Expires.Sub(now)/2))
	at := k.Expires.Round(0).Add(-ahead + rand.N(ahead/5+1))
	// A source that hands out the same one until it expires is not asked in a loop.
	if soonest := now.Add(firstPause); at.Before(soonest) {
		return soonest
	}
	return at
}

// pause grows with the failures in a row, and is not the same everywhere.
func pause(failures int) time.Duration {
	d := min(firstPause<<min(failures-1, 10), lastPause)
	return d*4/5 + rand.N(d*2/5+1)
}

func (s *state) valid(now time.Time) bool {
	return s.credential != nil && !s.credential.expired(now)
}

// now is the wall clock's time: what counts is when a credential expires for the server.
func (c *Cache) now() time.Time { return c.o.Clock().Round(0) }
