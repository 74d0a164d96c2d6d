// Package refresh keeps something that expires, a credential say. It gets the next one ahead
// of the end, makes one attempt at a time and bounds it, pauses after those that fail, and
// serves the old one while it is valid.
package refresh

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// FirstPause is how long after a failed attempt there is no other; it doubles.
	FirstPause = time.Second
	// LastPause is how long it is after many.
	LastPause = time.Minute

	longestNap = time.Minute // timers stand still while a machine sleeps, so look at the wall clock
)

// Options configure New. All but Clock, Kept and Failed are needed.
type Options[T any] struct {
	// Source gets another value. It respects its context.
	Source func(context.Context) (T, error)
	// Check tells what keeps a value from being used at a time.
	Check func(v T, now time.Time) error
	// Expires is when a value's time is over; zero: never, or nobody knows.
	Expires func(T) time.Time
	// Explain makes what Get fails with of an error of Source or Check; late, where the time
	// for the attempt was over. nil stands for a value that was over when it came.
	Explain func(err error, late bool) error

	Timeout time.Duration    // for one attempt
	Ahead   time.Duration    // before it expires; at most half of what a value lives
	Clock   func() time.Time // nil: time.Now

	Kept   func(T)                                         // called with each value, before it is used
	Failed func(err error, serves bool, retryAt time.Time) // called where there was a value before, which serves on or not
}

// A Cache holds the value of now. Its methods are safe for concurrent use.
type Cache[T any] struct {
	o Options[T]

	state   atomic.Pointer[state[T]]
	turn    chan struct{} // held by whoever makes an attempt
	wake    chan struct{}
	running atomic.Int32 // calls of Run
	stale   atomic.Bool  // Invalidate was called, and no attempt has succeeded since
}

// state is what the last attempts yielded. It is never changed, only exchanged.
type state[T any] struct {
	value     T
	has       bool
	number    uint64    // of the value
	got       time.Time // when
	refreshAt time.Time // zero: never by itself
	err       error     // of the last attempt
	failures  int       // in a row
	attempt   time.Time // when the last one ended
	retryAt   time.Time // no attempt before; zero after a success
}

// New returns a cache. It does not call the source yet.
func New[T any](o Options[T]) *Cache[T] {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	c := &Cache[T]{o: o, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	c.state.Store(&state[T]{})
	return c
}

// Now is the wall clock's time: what counts is when a value expires for the server.
func (c *Cache[T]) Now() time.Time { return c.o.Clock().Round(0) }

// A Seen is what is at hand, valid or not.
type Seen[T any] struct {
	Value   T
	Got     time.Time // when it came
	Attempt time.Time // when the last attempt ended
	RetryAt time.Time // no attempt before; zero after a success
}

// Look returns what is at hand, and whether anything is. It never makes an attempt.
func (c *Cache[T]) Look() (Seen[T], bool) {
	s := c.state.Load()
	return Seen[T]{s.value, s.got, s.attempt, s.retryAt}, s.has
}

// Get returns a valid value: the one at hand, or else a new one. Where it has to make an
// attempt while a valid one is at hand (nobody calls Run, or Invalidate was called), that one
// serves if the attempt fails. It fails as Explain says, or with ctx.Err() if ctx ends first.
func (c *Cache[T]) Get(ctx context.Context) (T, error) {
	s := c.state.Load()
	if c.ready(s, c.Now()) {
		return s.value, nil
	}
	s, err := c.refresh(ctx, s)
	if c.valid(s, c.Now()) {
		return s.value, nil
	}
	if err == nil {
		err = c.o.Explain(nil, false)
	}
	var none T
	return none, err
}

// Ready returns what Get would return at once at a time of the Clock. ok is false where Get
// would make an attempt, or wait for one.
func (c *Cache[T]) Ready(now time.Time) (v T, ok bool) {
	s := c.state.Load()
	if !c.ready(s, now.Round(0)) {
		return v, false
	}
	return s.value, true
}

func (c *Cache[T]) ready(s *state[T], now time.Time) bool { return c.valid(s, now) && !c.due(s, now) }

func (c *Cache[T]) valid(s *state[T], now time.Time) bool {
	if !s.has {
		return false
	}
	end := c.o.Expires(s.value)
	return end.IsZero() || now.Before(end.Round(0))
}

// due tells whether Get itself makes an attempt although there is a valid value.
func (c *Cache[T]) due(s *state[T], now time.Time) bool {
	if now.Before(s.retryAt) {
		return false
	}
	if c.stale.Load() {
		return true
	}
	return c.running.Load() == 0 && !s.refreshAt.IsZero() && !now.Before(s.refreshAt)
}

// Put takes over a value that somebody else got. It fails as Explain says, or with ctx.Err().
func (c *Cache[T]) Put(ctx context.Context, v T) error {
	if err := c.o.Check(v, c.Now()); err != nil {
		return c.o.Explain(err, false)
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c.keep(v)
	c.nudge()
	return nil
}

// Invalidate has the next Get, or Run, make an attempt. Should it fail, the value at hand
// serves on while it lasts.
func (c *Cache[T]) Invalidate() {
	c.stale.Store(true)
	c.nudge()
}

// Stale reports that Invalidate was called, and that nothing else has come since.
func (c *Cache[T]) Stale() bool { return c.stale.Load() }

func (c *Cache[T]) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run gets values ahead of expiry until ctx ends. With it, Get does not wait. changed, if not
// nil, is called with each value that comes while it runs.
func (c *Cache[T]) Run(ctx context.Context, changed func(T)) {
	c.running.Add(1)
	defer c.running.Add(-1)
	last := c.state.Load().number
	for {
		s, now := c.state.Load(), c.Now()
		if s.number != last {
			last = s.number
			if changed != nil {
				changed(s.value)
			}
		}
		next := s.refreshAt
		if !s.has || c.stale.Load() {
			next = now
		}
		if next.Before(s.retryAt) && !next.IsZero() {
			next = s.retryAt
		}
		if !next.IsZero() && !now.Before(next) {
			_, _ = c.refresh(ctx, s) // Failed has told of it
			if ctx.Err() != nil {
				return
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
			return
		case <-c.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// refresh makes an attempt, or takes the result of one that ended after the caller saw
// before. It always returns a state.
func (c *Cache[T]) refresh(ctx context.Context, before *state[T]) (*state[T], error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return before, ctx.Err()
	}
	s, now := c.state.Load(), c.Now()
	if s != before || now.Before(s.retryAt) {
		return s, s.err // somebody else's result; after a failure that of everybody for a while
	}
	attempt, cancel := context.WithTimeout(ctx, c.o.Timeout)
	v, err := c.o.Source(attempt)
	late := attempt.Err() != nil
	cancel()
	if err != nil && ctx.Err() != nil {
		return s, ctx.Err() // the caller went away: that says nothing about the source
	}
	if err == nil {
		late = false // it came, if late
		err = c.o.Check(v, c.Now())
	}
	if err == nil {
		return c.keep(v), nil
	}
	next := *s
	next.err, next.failures, next.attempt = c.o.Explain(err, late), s.failures+1, c.Now()
	next.retryAt = next.attempt.Add(pause(next.failures))
	if s.has && c.o.Failed != nil { // the first attempt has a caller who is told
		c.o.Failed(next.err, c.valid(s, next.attempt), next.retryAt)
	}
	c.state.Store(&next)
	return &next, next.err
}

// keep needs the turn.
func (c *Cache[T]) keep(v T) *state[T] {
	now := c.Now()
	if c.o.Kept != nil {
		c.o.Kept(v)
	}
	s := &state[T]{value: v, has: true, number: c.state.Load().number + 1, got: now, attempt: now, refreshAt: c.refreshAt(v, now)}
	c.state.Store(s)
	c.stale.Store(false) // afterwards: who was refused the one before sees that there is another
	return s
}

// refreshAt spreads refreshes over a fifth of the time ahead: many proxies that started
// together do not call together.
func (c *Cache[T]) refreshAt(v T, now time.Time) time.Time {
	end := c.o.Expires(v)
	if end.IsZero() {
		return time.Time{}
	}
	ahead := max(0, min(c.o.Ahead, end.Sub(now)/2))
	at := end.Round(0).Add(-ahead + rand.N(ahead/5+1))
	// A source that hands out the same one until it expires is not asked in a loop.
	if soonest := now.Add(FirstPause); at.Before(soonest) {
		return soonest
	}
	return at
}

// pause grows with the failures in a row, and is not the same everywhere.
func pause(failures int) time.Duration {
	d := Doubled(failures)
	return d*4/5 + rand.N(d*2/5+1)
}

// Doubled is the pause after so many failures, at least one, in a row.
func Doubled(failures int) time.Duration {
	return min(FirstPause<<min(failures-1, 10), LastPause)
}
