package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// A mint is a source of tokens t1, t2, … that live for a while.
type mint struct {
	calls atomic.Int32
	life  time.Duration
	takes time.Duration
	err   atomic.Pointer[error]
}

func (m *mint) Credential(ctx context.Context) (*Credential, error) {
	n := m.calls.Add(1)
	if m.takes > 0 {
		select {
		case <-time.After(m.takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := m.err.Load(); err != nil {
		return nil, *err
	}
	c := &Credential{Token: fmt.Sprintf("t%d", n)}
	if m.life != 0 {
		c.Expires = time.Now().Add(m.life)
	}
	return c, nil
}

func (m *mint) fail(err error) {
	if err == nil {
		m.err.Store(nil)
		return
	}
	m.err.Store(&err)
}

func want(t *testing.T, c *Cache, token string) {
	t.Helper()
	k, err := c.Credential(t.Context())
	if err != nil || k.Token != token {
		t.Errorf("%v, %v; want %s", k, err, token)
	}
}

func TestSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mint{life: time.Hour, takes: time.Second}
		c := New(m, Options{})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { want(t, c, "t1") })
		}
		all.Wait()
		if n := m.calls.Load(); n != 1 {
			t.Errorf("50 callers made %d attempts", n)
		}
	})
}

// With Run nobody waits: the next one is there ahead of the end of the one before.
func TestRefreshAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mint{life: 10 * time.Minute}
		c := New(m, Options{})
		want(t, c, "t1")
		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		done := make(chan error)
		go func() { done <- c.Run(ctx, func(k *Credential) { seen = append(seen, k.Token) }) }()
		time.Sleep(8 * time.Minute)
		want(t, c, "t1")
		time.Sleep(119 * time.Second)
		want(t, c, "t2")
		if n := m.calls.Load(); n != 2 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		cancel()
		if err := <-done; err != nil || len(seen) != 1 || seen[0] != "t2" {
			t.Errorf("Run: %v, told of %q", err, seen)
		}
	})
}

// While no new one is to be had the old one serves, to its end and no longer; attempts
// pause, and their error is everybody's meanwhile.
func TestFailingSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mint{life: 10 * time.Minute}
		c := New(m, Options{})
		want(t, c, "t1")
		m.fail(errors.New("the issuer is down"))
		time.Sleep(9*time.Minute + 30*time.Second)
		for range 100 {
			want(t, c, "t1")
		}
		if n := m.calls.Load(); n != 2 {
			t.Errorf("%d attempts, want the first and one that failed", n)
		}
		time.Sleep(time.Minute)
		before := m.calls.Load()
		for range 100 {
			k, err := c.Credential(t.Context())
			var known *Error
			if k != nil || !errors.As(err, &known) || known.StatusCode() != http.StatusServiceUnavailable || !strings.Contains(err.Error(), "the issuer is down") {
				t.Fatalf("%v, %v", k, err)
			}
		}
		if n := m.calls.Load() - before; n > 1 {
			t.Errorf("100 callers made %d attempts at once", n)
		}
		m.fail(nil)
		time.Sleep(2 * time.Minute)
		if _, err := c.Credential(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mint{takes: time.Hour}
		c := New(m, Options{Timeout: 5 * time.Second})
		began := time.Now()
		if _, err := c.Credential(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		// A caller who goes away says nothing about the source.
		c = New(m, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Credential(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		m.takes = 0
		want(t, c, "t3")
	})
}

// A refusal leads to another credential at once; a server that refuses everything leads to
// ever fewer of them.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mint{life: time.Hour}
		c := New(m, Options{})
		if c.Refused(time.Now()) {
			t.Error("there was nothing to refuse")
		}
		want(t, c, "t1")
		time.Sleep(time.Second)
		sent := time.Now()
		for range 3 { // at the same time
			if !c.Refused(sent) {
				t.Error("the first refusal gets nothing")
			}
		}
		time.Sleep(time.Millisecond)
		want(t, c, "t2")
		// What was sent before that, with the old one, is worth another try and no attempt.
		if first, second := c.Refused(sent), c.Refused(sent); !first || !second {
			t.Error("there is another one since")
		}
		want(t, c, "t2")
		tries := 0
		for range 600 { // ten minutes, once a second
			time.Sleep(time.Second)
			if c.Refused(time.Now()) {
				tries++
			}
			time.Sleep(time.Nanosecond)
			if _, err := c.Credential(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if tries < 5 || tries > 20 {
			t.Errorf("%d attempts in ten minutes of refusals", tries)
		}
		// Calm, and the next one is the first again.
		time.Sleep(11 * time.Minute)
		if !c.Refused(time.Now()) {
			t.Error("a refusal after ten calm minutes gets nothing")
		}
		// An attempt that fails leaves the old one.
		m.fail(errors.New("down"))
		k, err := c.Credential(t.Context())
		if err != nil || k == nil {
			t.Errorf("%v, %v", k, err)
		}
	})
}

func TestPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mint{life: time.Hour}
		m.fail(errors.New("nobody to ask"))
		c := New(m, Options{})
		if _, err := c.Credential(t.Context()); err == nil {
			t.Fatal("no error")
		}
		if err := c.Put(t.Context(), &Credential{Token: "given", Expires: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		want(t, c, "given")
		for _, bad := range []*Credential{{}, {Token: "a\nb"}, {Token: "over", Expires: time.Now().Add(-time.Second)}, {KeyPEM: []byte("k")}} {
			if err := c.Put(t.Context(), bad); err == nil || strings.Contains(err.Error(), "a\nb") {
				t.Errorf("%v: %v", bad, err)
			}
		}
		want(t, c, "given")
	})
}

func TestSigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(&mint{life: time.Hour}, Options{})
		s := NewSigner(c)
		if s.ObserveResponse(401, nil, time.Now()) {
			t.Error("again, without a token")
		}
		h, err := s.SignRequest(t.Context(), &signer.Request{})
		if err != nil || len(h) != 1 || h.Get("Authorization") != "Bearer t1" {
			t.Fatalf("%v, %v", h, err)
		}
		time.Sleep(time.Second)
		if s.ObserveResponse(403, nil, time.Now()) {
			t.Error("again after a 403, which names the user")
		}
		if !s.ObserveResponse(401, nil, time.Now()) {
			t.Error("not again after a 401")
		}
		if h, err = s.SignRequest(t.Context(), &signer.Request{}); err != nil || h.Get("Authorization") != "Bearer t2" {
			t.Errorf("%v, %v", h, err)
		}
		pair := New(SourceFunc(func(context.Context) (*Credential, error) {
			return &Credential{CertificatePEM: []byte("c"), KeyPEM: []byte("k")}, nil
		}), Options{})
		if h, err = NewSigner(pair).SignRequest(t.Context(), &signer.Request{}); err != nil || len(h) != 0 {
			t.Errorf("a certificate in a header: %v, %v", h, err)
		}
		time.Sleep(time.Second)
		if NewSigner(pair).ObserveResponse(401, nil, time.Now()) {
			t.Error("again on a connection with the old certificate")
		}
	})
}

func TestCheckToken(t *testing.T) {
	for _, good := range []string{"a", "eyJ.a-b_c~+/=", "k8s-aws-v1.aHR0", `"quoted"`} {
		if err := CheckToken(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "a b", "Bearer a", "a\r\nX-Remote-User: root", "a\n", "a\x00", "a\x7f", "ä", strings.Repeat("a", MaxToken+1)} {
		if err := CheckToken(bad); err == nil || len(bad) > 1 && strings.Contains(err.Error(), bad) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

// A credential that is printed or logged shows nothing.
func TestNoSecret(t *testing.T) {
	c := Credential{Token: "canary", CertificatePEM: []byte("canary"), KeyPEM: []byte("canary"), Expires: time.Now()}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("a", "by value", c, "by pointer", &c)
	for _, s := range []string{fmt.Sprint(c), fmt.Sprint(&c), fmt.Sprintf("%v %+v %#v %s %q", c, c, c, c, c), fmt.Sprintf("%#v", &c), log.String()} {
		if strings.Contains(s, "canary") || strings.Contains(s, "99 97 110") {
			t.Error(s)
		}
	}
}

// TestRefusedTogether: requests that are refused at the same time are all worth another
// try, whichever of them is looked at first.
func TestRefusedTogether(t *testing.T) {
	for range 500 {
		c := New(&mint{life: time.Hour}, Options{})
		want(t, c, "t1")
		time.Sleep(time.Microsecond)
		sent := time.Now()
		var all sync.WaitGroup
		start := make(chan struct{})
		for range 8 {
			all.Go(func() {
				<-start
				if !c.Refused(sent) {
					t.Error("not worth another try")
				}
			})
		}
		close(start)
		all.Wait()
		if t.Failed() {
			return
		}
	}
}
