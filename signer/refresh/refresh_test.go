package refresh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errOver = errors.New("it is over")

// A thing expires.
type thing struct {
	number int64
	end    time.Time
}

// A shop hands out things that live for an hour, or fails.
type shop struct {
	calls  atomic.Int64
	closed atomic.Bool
	slow   atomic.Int64 // how long it takes
}

var errClosed = errors.New("closed")

func (s *shop) get(ctx context.Context) (*thing, error) {
	n := s.calls.Add(1)
	select {
	case <-time.After(time.Duration(s.slow.Load())):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.closed.Load() {
		return nil, errClosed
	}
	return &thing{n, time.Now().Add(time.Hour)}, nil
}

func (s *shop) cache(edit ...func(*Options[*thing])) *Cache[*thing] {
	o := Options[*thing]{
		Source: s.get, Timeout: 10 * time.Second, Ahead: 5 * time.Minute,
		Check: func(t *thing, now time.Time) error {
			if !now.Before(t.end) {
				return errOver
			}
			return nil
		},
		Expires: func(t *thing) time.Time { return t.end },
		Explain: func(err error, late bool) error {
			if err == nil {
				return errOver
			}
			return fmt.Errorf("explained, late %v: %w", late, err)
		},
	}
	for _, e := range edit {
		e(&o)
	}
	return New(o)
}

func number(t *testing.T, c *Cache[*thing], want int64) {
	t.Helper()
	if v, err := c.Get(t.Context()); err != nil || v.number != want {
		t.Errorf("got %v, %v, want number %d", v, err, want)
	}
}

// TestTogether: whoever waits takes what one of them gets, a failure too.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shop
		s.slow.Store(int64(time.Second))
		c := s.cache()
		for _, closed := range []bool{true, false} {
			s.closed.Store(closed)
			before := s.calls.Load()
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					if _, err := c.Get(t.Context()); closed != errors.Is(err, errClosed) {
						t.Errorf("closed %v: %v", closed, err)
					}
				})
			}
			all.Wait()
			if n := s.calls.Load() - before; n != 1 {
				t.Errorf("closed %v: %d calls, want 1", closed, n)
			}
			time.Sleep(2 * FirstPause)
		}
	})
}

// TestPauses: what fails is not tried in a loop, and the old value serves until its end.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shop
		var failed atomic.Int64
		c := s.cache(func(o *Options[*thing]) {
			o.Failed = func(err error, serves bool, retryAt time.Time) {
				if !errors.Is(err, errClosed) || !retryAt.After(time.Now()) {
					t.Errorf("told of %v, retry at %v", err, retryAt)
				}
				if serves {
					failed.Add(1)
				}
			}
		})
		number(t, c, 1)
		s.closed.Store(true)
		c.Invalidate()
		for range 100 {
			number(t, c, 1)
		}
		if n := s.calls.Load(); n != 2 || failed.Load() != 1 || !c.Stale() {
			t.Errorf("%d calls, told of %d, stale %v; want 2, 1, true", n, failed.Load(), c.Stale())
		}
		time.Sleep(time.Hour)
		if _, err := c.Get(t.Context()); !errors.Is(err, errClosed) {
			t.Errorf("at its end: %v", err)
		}
		s.closed.Store(false)
		time.Sleep(2 * LastPause)
		number(t, c, 4)
		if c.Stale() {
			t.Error("still stale")
		}
	})
}

// TestAbandoned: a caller who goes away is no failure of the source's.
func TestAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shop
		s.slow.Store(int64(5 * time.Second))
		c := s.cache()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("abandoned: %v", err)
		}
		number(t, c, 2) // at once
		s.slow.Store(int64(time.Minute))
		c.Invalidate()
		begin := time.Now()
		number(t, c, 2)
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("an attempt took %v, want its timeout", took)
		}
	})
}

// TestRun: values come ahead of their end, each is told once, one that was put counts.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shop
		c := s.cache()
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan int64, 100)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(ctx, func(v *thing) { told <- v.number })
		}()
		synctest.Wait()
		time.Sleep(56 * time.Minute)
		number(t, c, 2)
		if err := c.Put(t.Context(), &thing{100, time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		number(t, c, 100)
		if err := c.Put(t.Context(), &thing{101, time.Now()}); !errors.Is(err, errOver) {
			t.Errorf("put one that is over: %v", err)
		}
		c.Invalidate()
		synctest.Wait()
		number(t, c, 3)
		cancel()
		<-done
		close(told)
		var got []int64
		for n := range told {
			got = append(got, n)
		}
		if fmt.Sprint(got) != "[1 2 100 3]" {
			t.Errorf("told of %v", got)
		}
	})
}

// TestForever: what has no end is got once.
func TestForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shop
		c := s.cache(func(o *Options[*thing]) { o.Expires = func(*thing) time.Time { return time.Time{} } })
		number(t, c, 1)
		time.Sleep(1000 * time.Hour)
		number(t, c, 1)
	})
}

func BenchmarkGet(b *testing.B) {
	var s shop
	c := s.cache()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Get(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestReady: it has what Get would not wait for, and never makes an attempt.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{}
		c := s.cache()
		ready := func(when string, want int64) {
			t.Helper()
			before := s.calls.Load()
			v, ok := c.Ready(time.Now())
			if ok != (want != 0) || ok && v.number != want || !ok && v != nil {
				t.Errorf("%s: %v, %t, want number %d", when, v, ok, want)
			}
			if s.calls.Load() != before {
				t.Errorf("%s: it made an attempt", when)
			}
		}
		ready("nothing yet", 0)
		number(t, c, 1)
		ready("there", 1)
		c.Invalidate()
		ready("invalidated", 0)
		number(t, c, 2)
		ready("another", 2)
		time.Sleep(time.Hour - time.Minute)
		ready("to be refreshed by who asks", 0)
		s.closed.Store(true)
		number(t, c, 2)
		ready("there was an attempt, and it failed", 2)
		time.Sleep(time.Minute)
		ready("over", 0)
	})
}
