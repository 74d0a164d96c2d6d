package enroll

import (
	"context"
	"crypto"
	"crypto/x509"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestExpired: what has ended cannot be renewed, and nothing is tried.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, day)
		m.a.approves = false
		m.run()
		m.until(0.9)
		if m.r.State().Pending == "" {
			t.Fatalf("%+v", m.r.State())
		}
		end := m.current.NotAfter
		time.Sleep(time.Until(end) + 2*time.Second)
		synctest.Wait()
		m.a.set(func() { m.a.requests = nil })
		want := "the certificate expired at " + end.UTC().Format(time.RFC3339) + ": run execproxy key enroll"
		time.Sleep(day)
		synctest.Wait()
		if s := m.r.State(); !s.Expired || s.LastError != want || s.Pending != "" || !s.Next.IsZero() || len(m.a.requests) != 0 {
			t.Errorf("%+v, %d requests", s, len(m.a.requests))
		}
		if n := strings.Count(m.log.String(), "ERROR"); n != 1 {
			t.Errorf("told %d times", n)
		}
		// Somebody enrolled anew.
		m.mu.Lock()
		m.current = m.certify(day)
		m.mu.Unlock()
		time.Sleep(step)
		synctest.Wait()
		if s := m.r.State(); s.Expired || s.LastError != "" || time.Until(s.Next) < day/2 {
			t.Errorf("%+v", s)
		}
		m.mu.Lock()
		m.current = nil
		m.mu.Unlock()
		time.Sleep(step)
		synctest.Wait()
		if s := m.r.State(); !strings.Contains(s.LastError, "no certificate yet") {
			t.Errorf("%+v", s)
		}
	})
}

// TestReplaced: somebody else's renewal ends ours.
func TestReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, day)
		m.a.approves = false
		m.run()
		m.until(0.8)
		if m.r.State().Pending == "" {
			t.Fatalf("%+v", m.r.State())
		}
		m.mu.Lock()
		m.current = m.certify(10 * day)
		m.mu.Unlock()
		time.Sleep(2 * step)
		synctest.Wait()
		if s := m.r.State(); s.Pending != "" || s.LastError != "" || time.Until(s.Next) < 6*day || !s.NotAfter.Equal(m.current.NotAfter) {
			t.Errorf("%+v", s)
		}
		// Also while a retry is far away.
		m.a.forbidden["create"] = true
		m.until(0.70)
		if m.r.State().LastError == "" {
			t.Fatalf("%+v", m.r.State())
		}
		m.mu.Lock()
		m.current = m.certify(20 * day)
		m.mu.Unlock()
		time.Sleep(step)
		synctest.Wait()
		if s := m.r.State(); s.LastError != "" || time.Until(s.Next) < 12*day {
			t.Errorf("%+v", s)
		}
	})
}

// TestSlowToTakeUp: a Store that takes effect later does not make it renew twice.
func TestSlowToTakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, day)
		var later *x509.Certificate
		m.r.Store = func(_ context.Context, chain [][]byte) (err error) {
			later, err = x509.ParseCertificate(chain[0])
			return err
		}
		m.run()
		m.until(0.75)
		if s := m.r.State(); s.Renewed != 1 || !s.NotAfter.Equal(later.NotAfter) || s.LastError != "" {
			t.Fatalf("%+v", s)
		}
		next := m.r.State().Next
		m.mu.Lock()
		m.current = later
		m.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := m.r.State(); s.Renewed != 1 || !s.Next.Equal(next) {
			t.Errorf("%+v", s)
		}
	})
}

// TestWakesUp: a machine slept over the time of its renewal; no timer noticed.
func TestWakesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 30*day)
		m.run()
		time.Sleep(time.Hour)
		m.asleep.Store(int64(25 * day))
		time.Sleep(step + time.Second)
		m.expectRenewed(1)
	})
	// And over the end, with a request under way.
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 30*day)
		m.a.approves = false
		m.run()
		m.until(0.7)
		m.asleep.Store(int64(25 * day))
		time.Sleep(step + 2*time.Second)
		synctest.Wait()
		if s := m.r.State(); !s.Expired || s.Pending != "" {
			t.Errorf("%+v", s)
		}
	})
}

// TestManyRenewers: daemons that share a certificate share the request, too.
func TestManyRenewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, day)
		m.a.approves = false
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		var renewers []*Renewer
		for range 5 {
			r := &Renewer{Client: m.r.Client, Current: m.r.Current, Key: func(context.Context) (crypto.Signer, func(), error) { return m.key, nil, nil },
				Store: func(context.Context, [][]byte) error { return nil }}
			renewers = append(renewers, r)
			all.Go(func() { _ = r.Run(ctx) })
		}
		m.until(0.75)
		if n := m.a.names(); len(n) != 1 {
			t.Fatalf("requests %q", n)
		}
		m.a.approve(m.a.names()[0])
		synctest.Wait()
		for _, r := range renewers {
			if r.State().Renewed != 1 {
				t.Errorf("%+v", r.State())
			}
		}
		cancel()
		all.Wait()
	})
}

func TestRunNeeds(t *testing.T) {
	if err := (&Renewer{}).Run(t.Context()); err == nil {
		t.Error("it runs with nothing")
	}
}
