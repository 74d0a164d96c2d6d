package transport

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// device is a key in a device: it counts what it is asked to do, and can be out of order.
type device struct {
	crypto.Signer
	asked  atomic.Int64
	broken atomic.Pointer[error]
}

func (d *device) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	d.asked.Add(1)
	if err := d.broken.Load(); err != nil {
		return nil, *err
	}
	return d.Signer.Sign(rand, digest, opts)
}

// inDevice moves the key of a certificate into a device.
func inDevice(c *tls.Certificate) (*tls.Certificate, *device) {
	d := &device{Signer: c.PrivateKey.(crypto.Signer)}
	cp := *c
	cp.PrivateKey = d
	return &cp, d
}

// withDevice returns a client of s whose key is in a device.
func (s *server) withDevice(t testing.TB, issuer *authority) (*Transport, *device) {
	t.Helper()
	c, d := inDevice(issuer.issue(t, "alice", time.Now().Add(time.Hour)))
	return s.client(t, func(o *Options) { o.Certificate = c }), d
}

// overdue ends the time of what is held, as waiting does.
func overdue(tr *Transport) { holdFor(tr, -time.Nanosecond) }

// holdFor makes what is held last for d from now, however slow the machine is.
func holdFor(tr *Transport, d time.Duration) {
	g := tr.current.Load()
	g.mu.Lock()
	g.failedAt = time.Time{}
	g.mu.Unlock()
	g.hold.mu.Lock()
	g.hold.until = time.Now().Add(d)
	g.hold.mu.Unlock()
}

// A certificate that the server refuses costs a signature or two, whatever is sent: 250
// requests at once, 250 one after the other, and upgrades.
func TestRefusedCertificateIsNoStorm(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    serverOptions
		most int64
	}{
		{"HTTP/2", serverOptions{}, 2},
		// One for the dial that finds out that there is no HTTP/2, which TLS 1.3 lets pass.
		{"HTTP/1.1", serverOptions{noHTTP2: true}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			other := newAuthority(t)
			s := serve(t, tt.o, http.HandlerFunc(user))
			tr, key := s.withDevice(t, other)
			begin := time.Now()
			if tt.o.noHTTP2 {
				_, _ = tryGet(t, tr, "/") // each of many at once has a connection of its own
			}
			together(250, func(int) {
				if _, err := tryGet(t, tr, "/"); err == nil {
					t.Error("a refused certificate was taken")
				}
			})
			for range 250 {
				_, err := tryGet(t, tr, "/")
				if !errors.Is(err, ErrCertificateRefused) || !tt.o.noHTTP2 && !Unsent(err) {
					t.Fatalf("got %v", err)
				}
			}
			for range 50 {
				_, err := tr.Upgrade().RoundTrip(upgradeRequest(t, context.Background()))
				if !errors.Is(err, ErrCertificateRefused) {
					t.Fatalf("upgrade: %v", err)
				}
			}
			took := time.Since(begin)
			most := tt.most + int64(took/refusedHold)
			if n := key.asked.Load(); n > most || n == 0 {
				t.Errorf("%d signatures for 550 requests in %v, want at most %d", n, took, most)
			}
			equal(t, "counted signatures", tr.Stats().Signatures, uint64(key.asked.Load()))
			t.Logf("550 requests: %d signatures, %d dials, %v", key.asked.Load(), tr.Stats().Dials, took)
		})
	}
}

// After each refusal that follows a try the server is left alone for twice as long.
func TestRefusalIsTriedAgain(t *testing.T) {
	other := newAuthority(t)
	s := serve(t, serverOptions{clients: other}, http.HandlerFunc(user))
	tr, key := s.withDevice(t, s.ca)
	_, err := tryGet(t, tr, "/")
	wantKind(t, err, ErrCertificateRefused, true)
	for n := range int64(4) {
		equal(t, "signatures", key.asked.Load(), n+1)
		overdue(tr)
		together(20, func(int) { _, _ = tryGet(t, tr, "/") })
	}
	g := tr.current.Load()
	equal(t, "hold", g.hold.delay, 16*refusedHold)
	_, err = tryGet(t, tr, "/")
	wantKind(t, err, ErrCertificateRefused, true)
	if !strings.Contains(err.Error(), "; the server is not asked again before ") {
		t.Errorf("does not say that nothing was tried: %v", err)
	}

	// Another identity is another matter.
	check(t, tr.Rotate(Identity{Certificate: other.issue(t, "bob", time.Now().Add(time.Hour)), RootCAs: s.ca.pool}))
	equal(t, "rotated", get(t, tr, "/"), "HTTP/2.0 bob")
}

// A server that takes the certificate at last is asked as before.
func TestRefusalEndsWithADialThatSucceeds(t *testing.T) {
	other := newAuthority(t)
	s := serve(t, serverOptions{clients: other}, http.HandlerFunc(user))
	tr, key := s.withDevice(t, s.ca)
	_, err := tryGet(t, tr, "/")
	wantKind(t, err, ErrCertificateRefused, true)
	holdFor(tr, time.Hour)
	addr := s.addr
	check(t, s.http.Close())
	s2 := serve(t, serverOptions{addr: addr, ca: s.ca}, http.HandlerFunc(user))
	_, err = tryGet(t, tr, "/")
	wantKind(t, err, ErrCertificateRefused, true) // held
	overdue(tr)
	equal(t, "answer", get(t, tr, "/"), "HTTP/2.0 alice")
	equal(t, "accepted", s2.accepted.Load(), 1)
	tr.CloseIdleConnections()
	equal(t, "resumed", get(t, tr, "/"), "HTTP/2.0 alice")
	equal(t, "signatures", key.asked.Load(), 2)
	if err := tr.current.Load().hold.check(time.Now()); err != nil {
		t.Errorf("still held: %v", err)
	}
}

// A device that is out of order is asked a few times, and found when it is back.
func TestBrokenKeyIsNoStorm(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr, key := s.withDevice(t, s.ca)
	broken := errors.New("token is gone")
	key.broken.Store(&broken)
	begin := time.Now()
	for range 500 {
		_, err := tryGet(t, tr, "/")
		if !errors.Is(err, ErrKey) || !errors.Is(err, broken) || !Unsent(err) {
			t.Fatalf("got %v", err)
		}
	}
	if most := 1 + int64(time.Since(begin)/keyHold); key.asked.Load() > most {
		t.Errorf("%d signatures in %v, want at most %d", key.asked.Load(), time.Since(begin), most)
	}
	key.broken.Store(nil)
	overdue(tr)
	equal(t, "back", get(t, tr, "/"), "HTTP/2.0 alice")
}

// A broken key is held for upgrades, too, which share no connection.
func TestBrokenKeyAndUpgrades(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(echo))
	tr, key := s.withDevice(t, s.ca)
	broken := errors.New("token is gone")
	key.broken.Store(&broken)
	begin := time.Now()
	for range 50 {
		_, err := tr.Upgrade().RoundTrip(upgradeRequest(t, context.Background()))
		if !errors.Is(err, ErrKey) || !Unsent(err) {
			t.Fatalf("got %v", err)
		}
	}
	if most := 1 + int64(time.Since(begin)/keyHold); key.asked.Load() > most {
		t.Errorf("%d signatures for 50 upgrades in %v, want at most %d", key.asked.Load(), time.Since(begin), most)
	}
	key.broken.Store(nil)
	overdue(tr)
	res, err := tr.Upgrade().RoundTrip(upgradeRequest(t, context.Background()))
	check(t, err)
	check(t, res.Body.Close())
	if err := tr.current.Load().hold.check(time.Now()); err != nil {
		t.Errorf("still held: %v", err)
	}
}

// TestHold steps through the times without waiting for them.
func TestHold(t *testing.T) {
	now := time.Unix(1e9, 0)
	refused := &UpstreamError{Kind: ErrCertificateRefused, Server: "a:1", Hint: "mend it"}
	key := &UpstreamError{Kind: ErrKey, Server: "a:1", unsent: true}
	var h hold
	held := func() bool { t.Helper(); return h.check(now) != nil }
	for _, tt := range []struct {
		err         *UpstreamError
		first, most time.Duration
	}{{refused, refusedHold, refusedMost}, {key, keyHold, keyMost}} {
		for want, n := tt.first, 0; n < 8; n++ {
			h.note(tt.err, now)
			h.note(tt.err, now) // another that was under way
			now = now.Add(want - 1)
			if !held() {
				t.Fatalf("%v: failure %d is held for less than %v", tt.err.Kind, n+1, want)
			}
			if err := h.check(now); !Unsent(err) || !errors.Is(err, tt.err.Kind) {
				t.Fatalf("held: %v", err)
			}
			now = now.Add(1)
			if held() {
				t.Fatalf("%v: failure %d is held for more than %v", tt.err.Kind, n+1, want)
			}
			if !held() {
				t.Fatalf("%v: a second dial goes through beside the first", tt.err.Kind)
			}
			want = min(2*want, tt.most)
		}
	}
	h.note(&UpstreamError{Kind: ErrUnreachable}, now) // the dial that went through got nowhere
	if held() {
		t.Error("a server that could not be reached keeps the next dial back")
	}
	h.note(h.check(now), now) // what is held is no news
	h.note(context.Canceled, now)
	h.note(errRetired, now)
	if !held() {
		t.Error("what says nothing about the key ended the hold")
	}
	h.note(nil, now)
	for range 2 {
		if held() {
			t.Error("held after a dial that succeeded")
		}
	}
	h.note(key, now)
	now = now.Add(keyHold)
	if held() {
		t.Error("begins anew with the first time")
	}
	now = now.Add(-time.Second)
	h = hold{err: refused, delay: refusedMost, until: now.Add(worthTelling)}
	if got, want := h.check(now).Error(), "a:1: server refused the client certificate; mend it; the server is not asked again before "; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if refused.Hint != "mend it" || refused.unsent {
		t.Error("the first error was changed")
	}
}

type curedError struct{ cure bool }

func (curedError) Error() string   { return "token execproxy: is gone: put it back" }
func (e curedError) HasCure() bool { return e.cure }

// The home of a key knows better than we do what mends it.
func TestKeyErrorHasOneCure(t *testing.T) {
	for err, want := range map[error]string{
		curedError{true}:                   "a:1: private key could not sign: token execproxy: is gone: put it back",
		fmt.Errorf("%w", curedError{true}): "a:1: private key could not sign: token execproxy: is gone: put it back",
		curedError{false}:                  "a:1: private key could not sign: token execproxy: is gone: put it back; check the key's device or file",
		errors.New("device is gone"):       "a:1: private key could not sign: device is gone; check the key's device or file",
	} {
		if got := dialError("a:1", "", time.Second, errors.New("tls: internal"), err).Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
