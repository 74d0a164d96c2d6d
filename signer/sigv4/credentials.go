package sigv4

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// How credentials are kept.
const (
	DefaultTimeout      = 10 * time.Second // for one attempt to get credentials
	DefaultRefreshAhead = 5 * time.Minute  // before they expire

	firstPause = time.Second      // after a failed attempt; doubles
	lastPause  = time.Minute      // after many
	restless   = 30 * time.Second // Invalidate does nothing sooner than this after an attempt
	longestNap = time.Minute      // timers stand still while a machine sleeps, so look at the wall clock

	cureExpired = "renew them, or set this machine's clock"
)

// CacheOptions configure NewCredentials.
type CacheOptions struct {
	Timeout      time.Duration    // 0: DefaultTimeout
	RefreshAhead time.Duration    // 0: DefaultRefreshAhead; at most half of what a set of credentials lives
	Logger       *slog.Logger     // nil: silence
	Clock        func() time.Time // nil: time.Now
}

// Credentials is an [aws.CredentialsProvider] that caches. It gets new credentials ahead of
// expiry, serves those it has while a refresh fails and they are still valid, makes one
// attempt at a time, bounds each in time, and pauses after a failed one.
type Credentials struct {
	source aws.CredentialsProvider
	o      CacheOptions
	region string

	state   atomic.Pointer[state]
	turn    chan struct{} // held by whoever makes an attempt
	wake    chan struct{}
	running atomic.Int32 // calls of Run
	stale   atomic.Bool  // Invalidate was called, and no attempt has succeeded since
}

// state is what the last attempts yielded. It is never changed, only exchanged.
type state struct {
	creds     *aws.Credentials // nil: none yet
	refreshAt time.Time        // zero: never by itself
	err       error            // of the last attempt
	failures  int              // in a row
	attempt   time.Time        // when the last one ended
	retryAt   time.Time        // no attempt before; zero after a success
}

// NewCredentials returns a cache in front of source, which must respect the context it is
// given. It does not call source yet.
func NewCredentials(source aws.CredentialsProvider, o CacheOptions) *Credentials {
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
	c := &Credentials{source: source, o: o, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	c.state.Store(&state{})
	return c
}

// Region is the region that LoadCredentials found; "" where there is none.
func (c *Credentials) Region() string { return c.region }

// String tells whose credentials these are: the access key id, which is no secret.
func (c *Credentials) String() string {
	if s := c.state.Load(); s.creds != nil {
		return "aws credentials " + s.creds.AccessKeyID
	}
	return "aws credentials, none yet"
}

// GoString is String.
func (c *Credentials) GoString() string { return c.String() }

// Retrieve returns valid credentials: those at hand, or else new ones. Where it has to
// attempt a refresh while valid ones are at hand (nobody calls Run, or Invalidate was
// called), a failure is logged and those are returned. It fails with a *[CredentialsError],
// or with ctx.Err() if ctx ends first.
func (c *Credentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	s := c.state.Load()
	now := c.now()
	if s.valid(now) && !c.due(s, now) {
		return *s.creds, nil
	}
	s, err := c.refresh(ctx, s)
	if s.valid(c.now()) {
		return *s.creds, nil
	}
	if err == nil { // a success that is over already
		err = &CredentialsError{Err: ErrExpired, Cure: cureExpired}
	}
	return aws.Credentials{}, err
}

// due tells whether Retrieve itself attempts a refresh although there are valid credentials.
func (c *Credentials) due(s *state, now time.Time) bool {
	if now.Before(s.retryAt) {
		return false
	}
	if c.stale.Load() {
		return true
	}
	return c.running.Load() == 0 && !s.refreshAt.IsZero() && !now.Before(s.refreshAt)
}

// Invalidate has the next Retrieve, or Run, get new credentials: call it when the server
// refuses to authenticate. Nothing happens within 30 seconds of the last attempt, so that a
// server that refuses everything does not become a storm of calls. Should the refresh fail,
// the old credentials serve on while they last.
func (c *Credentials) Invalidate() {
	if s := c.state.Load(); s.creds == nil || c.now().Sub(s.attempt) < restless {
		return
	}
	c.stale.Store(true)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run refreshes credentials ahead of expiry until ctx ends, and returns nil then. With it,
// requests do not wait for refreshes.
func (c *Credentials) Run(ctx context.Context) error {
	c.running.Add(1)
	defer c.running.Add(-1)
	for {
		s, now := c.state.Load(), c.now()
		next := s.refreshAt
		if s.creds == nil || c.stale.Load() {
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
func (c *Credentials) refresh(ctx context.Context, before *state) (*state, error) {
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
	creds, err := c.source.Retrieve(attempt)
	late := attempt.Err() != nil
	cancel()
	if err != nil && ctx.Err() != nil {
		return s, ctx.Err() // the caller went away: that says nothing about the source
	}
	next := &state{attempt: c.now()}
	switch {
	case err != nil:
	case !creds.HasKeys():
		err = errors.New("the source gave an empty key")
	case expired(creds, next.attempt):
		err = &CredentialsError{Err: ErrExpired, Cure: cureExpired}
	}
	if err == nil {
		c.stale.Store(false)
		next.creds, next.refreshAt = &creds, c.refreshAt(creds, next.attempt)
		c.o.Logger.Debug("got aws credentials", slog.String("source", creds.Source),
			slog.String("accessKeyID", creds.AccessKeyID), slog.Time("expires", creds.Expires))
	} else {
		var known *CredentialsError
		if !errors.As(err, &known) {
			err = &CredentialsError{Err: err}
		}
		if late {
			err = fmt.Errorf("gave up after %s: %w", c.o.Timeout, err)
		}
		next.creds, next.refreshAt = s.creds, s.refreshAt
		next.err, next.failures = err, s.failures+1
		next.retryAt = next.attempt.Add(pause(next.failures))
		if s.creds != nil { // the first attempt has a caller who is told
			c.o.Logger.Warn("aws credentials were not refreshed", slog.Any("error", err),
				slog.Bool("oldOnesServe", s.valid(next.attempt)), slog.Time("retry", next.retryAt))
		}
	}
	c.state.Store(next)
	return next, err
}

// refreshAt spreads refreshes over a fifth of the time ahead: many proxies that started
// together do not call together.
func (c *Credentials) refreshAt(creds aws.Credentials, now time.Time) time.Time {
	if !creds.CanExpire {
		return time.Time{}
	}
	ahead := min(c.o.RefreshAhead, creds.Expires.Sub(now)/2)
	at := creds.Expires.Round(0).Add(-ahead + rand.N(ahead/5+1))
	// A source that hands out the same ones until they expire is not asked in a loop.
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
	return s.creds != nil && !expired(*s.creds, now)
}

// now is the wall clock's time: what counts is when the credentials expire for the server.
func (c *Credentials) now() time.Time { return c.o.Clock().Round(0) }
