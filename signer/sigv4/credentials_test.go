package sigv4

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/execproxy/execproxy/signer/refresh"
)

// source is a fake chain: it counts, and does what the test tells it.
type source struct {
	calls atomic.Int32
	do    atomic.Value // func(ctx context.Context, call int) (aws.Credentials, error)
}

type answer = func(ctx context.Context, call int) (aws.Credentials, error)

func newSource(do answer) *source {
	s := &source{}
	s.do.Store(do)
	return s
}

func (s *source) Retrieve(ctx context.Context) (aws.Credentials, error) {
	return s.do.Load().(answer)(ctx, int(s.calls.Add(1)))
}

func lasting(d time.Duration) aws.Credentials {
	return aws.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, Source: "fake", CanExpire: true, Expires: time.Now().Add(d)}
}

func hourly(_ context.Context, _ int) (aws.Credentials, error) { return lasting(time.Hour), nil }

// run starts Run and returns what ends it and checks that it ended well.
func run(t *testing.T, c *Credentials) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// TestRefreshedAhead: requests never wait; a day of hourly credentials is some 26 calls, each
// ahead of expiry.
func TestRefreshedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(func(ctx context.Context, call int) (aws.Credentials, error) {
			time.Sleep(3 * time.Second) // a request that came now would notice
			return hourly(ctx, call)
		})
		c := NewCredentials(s, CacheOptions{})
		if _, err := c.Retrieve(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		defer stop()
		for start := time.Now(); time.Since(start) < 24*time.Hour; time.Sleep(time.Second) {
			before := time.Now()
			creds, err := c.Retrieve(t.Context())
			if err != nil || time.Since(before) != 0 {
				t.Fatalf("after %s: %v, waited %s", time.Since(start), err, time.Since(before))
			}
			if left := time.Until(creds.Expires); left < 3*time.Minute {
				t.Fatalf("after %s: only %s left", time.Since(start), left)
			}
		}
		if n := s.calls.Load(); n < 25 || n > 28 {
			t.Errorf("%d calls in a day", n)
		}
	})
}

// TestOldOnesServe: a source that fails is asked again, with pauses; the old credentials
// serve while they last, and not longer.
func TestOldOnesServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newSource(func(_ context.Context, call int) (aws.Credentials, error) {
			if call == 1 {
				return lasting(time.Hour), nil
			}
			return aws.Credentials{}, errors.New("the source\nis down")
		})
		c := NewCredentials(s, CacheOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		creds, err := c.Retrieve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		time.Sleep(time.Hour - time.Second)
		if _, err := c.Retrieve(t.Context()); err != nil {
			t.Errorf("a second before expiry: %v", err)
		}
		time.Sleep(time.Second)
		for range 100 {
			var unavailable *CredentialsError
			if _, err := c.Retrieve(t.Context()); !errors.As(err, &unavailable) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("at expiry: %v", err)
			}
		}
		if n := s.calls.Load(); n < 5 || n > 20 {
			t.Errorf("%d calls in five minutes", n)
		}
		// It recovers by itself.
		s.do.Store(answer(hourly))
		time.Sleep(2 * refresh.LastPause)
		if got, err := c.Retrieve(t.Context()); err != nil || !got.Expires.After(creds.Expires) {
			t.Errorf("recovered: %v, %v", got.Expires, err)
		}
		stop()
		if !strings.Contains(log.String(), "not refreshed") || strings.Contains(log.String(), testSecret) {
			t.Errorf("log: %s", &log)
		}
	})
}

// TestWithoutRun: Retrieve itself refreshes ahead, and falls back on what it has.
func TestWithoutRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(hourly)
		c := NewCredentials(s, CacheOptions{})
		for range 10 {
			if _, err := c.Retrieve(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.calls.Load(); n != 1 {
			t.Errorf("%d calls", n)
		}
		s.do.Store(answer(func(context.Context, int) (aws.Credentials, error) { return aws.Credentials{}, errors.New("down") }))
		time.Sleep(57 * time.Minute)
		for range 10 {
			if _, err := c.Retrieve(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.calls.Load(); n != 2 {
			t.Errorf("%d calls, want one more", n)
		}
	})
}

// TestOneAttemptAtATime: a thousand requests at a cold start make one call, and share its failure.
func TestOneAttemptAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(func(ctx context.Context, _ int) (aws.Credentials, error) {
			<-ctx.Done() // hangs
			return aws.Credentials{}, ctx.Err()
		})
		c := NewCredentials(s, CacheOptions{Timeout: 3 * time.Second})
		start := time.Now()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				_, err := c.Retrieve(t.Context())
				if err == nil || !strings.Contains(err.Error(), "gave up after 3s") {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if n := s.calls.Load(); n != 1 || time.Since(start) != 3*time.Second {
			t.Errorf("%d calls in %s", n, time.Since(start))
		}
		s.do.Store(answer(hourly))
		time.Sleep(2 * time.Second)
		if _, err := c.Retrieve(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCallerGoesAway: a canceled request says nothing about the source.
func TestCallerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(func(ctx context.Context, call int) (aws.Credentials, error) {
			if call == 1 {
				<-ctx.Done()
				return aws.Credentials{}, ctx.Err()
			}
			return hourly(ctx, call)
		})
		c := NewCredentials(s, CacheOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := c.Retrieve(ctx)
			first <- err
		}()
		synctest.Wait()
		waiting, giveUp := context.WithCancel(t.Context())
		second := make(chan error, 1)
		go func() {
			_, err := c.Retrieve(waiting)
			second <- err
		}()
		third := make(chan error, 1)
		go func() {
			_, err := c.Retrieve(t.Context())
			third <- err
		}()
		synctest.Wait()
		giveUp()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Errorf("a waiter that gave up: %v", err)
		}
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the canceled one: %v", err)
		}
		if err := <-third; err != nil {
			t.Errorf("the one behind it: %v", err)
		}
	})
}

func TestInvalidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(hourly)
		c := NewCredentials(s, CacheOptions{})
		c.Invalidate() // of nothing
		if _, err := c.Retrieve(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Invalidate()
		if _, _ = c.Retrieve(t.Context()); s.calls.Load() != 1 {
			t.Error("a refusal right after a refresh makes another")
		}
		time.Sleep(restless)
		c.Invalidate()
		for range 10 {
			if _, err := c.Retrieve(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.calls.Load(); n != 2 {
			t.Errorf("%d calls, want 2", n)
		}
		// The source is down: the old ones serve on.
		s.do.Store(answer(func(context.Context, int) (aws.Credentials, error) { return aws.Credentials{}, errors.New("down") }))
		time.Sleep(restless)
		c.Invalidate()
		if _, err := c.Retrieve(t.Context()); err != nil || s.calls.Load() != 3 {
			t.Errorf("%v, %d calls", err, s.calls.Load())
		}
		// Run answers, too.
		s.do.Store(answer(hourly))
		time.Sleep(restless)
		stop := run(t, c)
		c.Invalidate()
		synctest.Wait()
		if n := s.calls.Load(); n != 4 {
			t.Errorf("%d calls, want 4", n)
		}
		stop()
	})
}

// TestStubbornSource: credentials that are handed out again although they end soon, or have
// ended, are not asked for in a loop.
func TestStubbornSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same := lasting(time.Minute)
		s := newSource(func(context.Context, int) (aws.Credentials, error) { return same, nil })
		c := NewCredentials(s, CacheOptions{})
		stop := run(t, c)
		time.Sleep(59 * time.Second)
		if _, err := c.Retrieve(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if _, err := c.Retrieve(t.Context()); !errors.Is(err, ErrExpired) {
			t.Errorf("expired: %v", err)
		}
		if n := s.calls.Load(); n > 25 {
			t.Errorf("%d calls in two minutes", n)
		}
		stop()
	})
}

// TestSleep: a laptop sleeps, its timers with it; the wall clock decides.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(slept.Load())) }
		s := newSource(func(context.Context, int) (aws.Credentials, error) {
			creds := lasting(time.Hour)
			creds.Expires = now().Add(time.Hour)
			return creds, nil
		})
		c := NewCredentials(s, CacheOptions{Clock: now})
		stop := run(t, c)
		slept.Store(int64(8 * time.Hour))
		time.Sleep(refresh.LastPause)
		synctest.Wait()
		if n := s.calls.Load(); n != 2 {
			t.Errorf("%d calls, want 2: Run did not notice", n)
		}
		slept.Store(int64(16 * time.Hour))
		creds, err := c.Retrieve(t.Context())
		if err != nil || !creds.Expires.After(now()) {
			t.Errorf("right after waking: %v, %v", creds.Expires, err)
		}
		stop()
	})
}

func TestEmptyKey(t *testing.T) {
	s := newSource(func(context.Context, int) (aws.Credentials, error) { return aws.Credentials{AccessKeyID: testID}, nil })
	if _, err := NewCredentials(s, CacheOptions{}).Retrieve(t.Context()); err == nil || !strings.Contains(err.Error(), "empty key") {
		t.Errorf("got %v", err)
	}
}
