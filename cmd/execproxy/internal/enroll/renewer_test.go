package enroll

import (
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const day = 24 * time.Hour

// TestRenews: at two thirds of each life, for months.
func TestRenews(t *testing.T) {
	for ttl, times := range map[time.Duration]int{10 * time.Minute: 20, time.Hour: 20, day: 20, 20 * day: 2} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t, ttl)
				m.run()
				state := m.r.State()
				if state.Next.IsZero() || !state.NotAfter.Equal(m.current.NotAfter) {
					t.Fatalf("%+v", state)
				}
				for n := range times {
					c := m.r.Current()
					life := c.NotAfter.Sub(c.NotBefore)
					m.until(0.63)
					m.expectRenewed(n)
					if next := m.r.State().Next; m.r.State().LastError != "" || n == 0 && !next.Equal(state.Next) {
						t.Errorf("the time of the renewal jumps from %v to %v", state.Next, next)
					}
					m.until(0.70)
					m.expectRenewed(n + 1)
					if now := m.r.Current(); now.NotAfter.Sub(now.NotBefore) != life || now.Subject.String() != c.Subject.String() {
						t.Errorf("after %v a life of %v", life, now.NotAfter.Sub(now.NotBefore))
					}
				}
				if strings.Contains(m.log.String(), "WARN") || len(m.a.requests) > times*3 {
					t.Errorf("%d requests\n%s", len(m.a.requests), &m.log)
				}
			})
		})
	}
}

// TestSpread: machines that were enrolled together come one after the other.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 100*day)
		first, last := time.Time{}, time.Time{}
		for range 200 {
			r := &Renewer{}
			r.init()
			at := r.due(m.current)
			if first.IsZero() || at.Before(first) {
				first = at
			}
			last = later(last, at)
		}
		from, to := float64(first.Sub(m.current.NotBefore))/float64(100*day), float64(last.Sub(m.current.NotBefore))/float64(100*day)
		if from < 0.636 || to > 0.697 || to-from < 0.04 {
			t.Errorf("from %.3f to %.3f of the life", from, to)
		}
	})
}

func TestRenewBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 20*day)
		m.r.RenewBefore = 5 * day
		m.run()
		time.Sleep(20*day - 5*day - 8*time.Hour)
		m.expectRenewed(0)
		time.Sleep(8 * time.Hour)
		m.expectRenewed(1)
	})
	// More than there is does not make renewing endless.
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, day)
		m.r.RenewBefore = 30 * day
		m.run()
		time.Sleep(10 * day)
		synctest.Wait()
		if n := len(m.at); n < 18 || n > 21 {
			t.Errorf("renewed %d times in ten days", n)
		}
	})
}

func TestExpiration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, day)
		m.r.Expiration = time.Hour
		m.run()
		time.Sleep(day)
		synctest.Wait()
		if c := m.r.Current(); c.NotAfter.Sub(c.NotBefore) != time.Hour+backdate {
			t.Errorf("%v", c.NotAfter.Sub(c.NotBefore))
		}
	})
}

// TestShortLives: a signer whose certificates are as good as over is not asked without end.
func TestShortLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, time.Hour)
		m.a.issue = func(_ *x509.CertificateRequest, c *x509.Certificate) []byte {
			c.NotAfter = time.Now().Add(21 * time.Second)
			return nil
		}
		m.run()
		time.Sleep(time.Hour + 10*time.Minute)
		synctest.Wait()
		if n := len(m.at); n < 50 || n > 35*6 {
			t.Errorf("renewed %d times in about half an hour", n)
		}
	})
}

// TestRetries: failures come less and less often, but the certificate does not end over it.
func TestRetries(t *testing.T) {
	for _, tc := range []struct {
		ttl         time.Duration
		least, most int // attempts between the first and the end
		first       time.Duration
	}{
		{10 * time.Minute, 20, 200, 20 * time.Second},
		{20 * day, 150, 400, 67 * time.Second},
	} {
		t.Run(tc.ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t, tc.ttl)
				m.a.forbidden["create"] = true
				m.run()
				time.Sleep(time.Until(m.r.State().Next))
				synctest.Wait()
				s := m.r.State()
				if !strings.Contains(s.LastError, "kubectl create clusterrolebinding execproxy-enroll:jane") || time.Until(s.Next) > tc.first || time.Until(s.Next) < time.Second {
					t.Fatalf("%+v in %v", s, time.Until(s.Next))
				}
				time.Sleep(time.Until(m.current.NotAfter))
				synctest.Wait()
				if n := m.a.count("POST"); n < tc.least || n > tc.most {
					t.Errorf("%d attempts", n)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, day)
		m.keyErr = errors.New("token is out")
		m.run()
		time.Sleep(16 * time.Hour)
		m.until(0.8)
		if s := m.r.State(); s.LastError != "token is out" || m.a.count("POST") != 0 {
			t.Errorf("%+v", s)
		}
		m.mu.Lock()
		m.keyErr, m.storeErr = nil, errors.New("disk full")
		m.mu.Unlock()
		m.until(0.9)
		if s := m.r.State(); s.LastError != "storing the renewed certificate: disk full" || m.a.count("POST") < 2 || len(m.a.names()) != 1 {
			t.Errorf("%+v, requests %q", s, m.a.names()) // one certificate is enough
		}
		m.mu.Lock()
		m.storeErr = nil
		m.mu.Unlock()
		time.Sleep(time.Hour)
		m.expectRenewed(1)
		if s := m.r.State(); s.LastError != "" || s.Next.Before(time.Now()) {
			t.Errorf("%+v", s)
		}
	})
}

// TestPending: an approval may take days, and processes may come and go meanwhile.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 30*day)
		m.a.approves = false
		m.run()
		m.until(0.70)
		s := m.r.State()
		name, since := s.Pending, s.Since
		if name == "" || !s.Next.IsZero() || time.Since(since) < time.Hour || s.Progress.State != Pending || !strings.Contains(m.log.String(), `approve="kubectl certificate approve `+name) {
			t.Fatalf("%+v", s)
		}
		time.Sleep(2 * day)
		m.restart()
		for {
			// The other process has another jitter.
			s = m.r.State()
			if s.Pending != "" {
				break
			}
			time.Sleep(day)
			synctest.Wait()
		}
		if s.Pending != name || !s.Since.Equal(since) || len(m.a.names()) != 1 {
			t.Errorf("%+v; was %s since %v; requests %q", s, name, since, m.a.names())
		}
		m.n.cut(false)
		time.Sleep(day)
		// The cluster removes what nobody approved; it is made again at once.
		m.a.delete(name)
		time.Sleep(time.Second)
		synctest.Wait()
		if s := m.r.State(); s.Pending != name || s.Since.Equal(since) || s.LastError != "" || len(m.a.names()) != 1 {
			t.Errorf("%+v", s)
		}
		m.a.approve(name)
		m.expectRenewed(1)
		if s := m.r.State(); s.Pending != "" || !s.Since.IsZero() || s.Progress.Name != "" {
			t.Errorf("%+v", s)
		}
	})
}

// TestDeletedAtOnce: whoever deletes each request as it comes is not fought.
func TestDeletedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 30*day)
		m.a.approves = false
		m.a.before = func(verb string, _ http.ResponseWriter, _ *http.Request) bool {
			if verb == "list" {
				for _, name := range m.a.names() {
					m.a.delete(name)
				}
			}
			return false
		}
		m.run()
		time.Sleep(time.Until(m.r.State().Next) + day)
		synctest.Wait()
		if n := m.a.count("POST"); n < 20 || n > 40 || !strings.Contains(m.r.State().LastError, "was deleted") {
			t.Errorf("%d requests in a day, %+v", n, m.r.State())
		}
	})
}

// TestDenied: it is told, and much later asked again, under a new name, also by a process
// that was started in between.
func TestDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 30*day)
		m.a.approves = false
		m.run()
		m.until(0.70)
		name := m.r.State().Pending
		m.a.deny(name, "No", "ask me first")
		synctest.Wait()
		s := m.r.State()
		left := time.Until(m.current.NotAfter)
		if !strings.Contains(s.LastError, name+" was denied: No: ask me first") || s.Pending != "" || time.Until(s.Next) < left/11 || time.Until(s.Next) > left/9 {
			t.Fatalf("%+v in %v of %v", s, time.Until(s.Next), left)
		}
		again := s.Next
		time.Sleep(time.Until(again) / 2)
		m.restart()
		time.Sleep(day / 24)
		synctest.Wait()
		if s := m.r.State(); len(m.a.names()) != 1 || s.LastError != "" && !strings.Contains(s.LastError, "was denied") {
			t.Errorf("%q, %+v", m.a.names(), s)
		}
		for len(m.a.names()) == 1 && time.Until(m.current.NotAfter) > 0 {
			time.Sleep(day)
			synctest.Wait()
		}
		s = m.r.State()
		if time.Now().Before(again) || s.Pending == "" || s.Pending == name {
			t.Fatalf("%+v", s)
		}
		m.a.approve(s.Pending)
		m.expectRenewed(1)
	})
}

// TestFailed: the signer's refusal is a failure like others.
func TestFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 30*day)
		m.a.approves = false
		m.run()
		m.until(0.70)
		name := m.r.State().Pending
		m.a.fails(name, "Bad", "bad")
		synctest.Wait()
		if s := m.r.State(); !strings.Contains(s.LastError, "refuses it: Bad: bad") || time.Until(s.Next) > 67*time.Second {
			t.Fatalf("%+v", s)
		}
		time.Sleep(2 * time.Minute)
		if s := m.r.State(); s.Pending == name || s.LastError != "" {
			t.Fatalf("%+v", s)
		}
		m.a.approve(m.r.State().Pending)
		m.expectRenewed(1)
	})
}
