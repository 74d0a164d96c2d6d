package transport

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// drained waits until no old generation is left.
func drained(t testing.TB, tr *Transport) {
	t.Helper()
	tr.mu.Lock()
	old := append([]*generation(nil), tr.draining...)
	tr.mu.Unlock()
	for _, g := range old {
		select {
		case <-g.ctx.Done():
		case <-time.After(5 * time.Second):
			t.Fatalf("generation %d does not end", g.number)
		}
	}
}

func TestRotateUnderAnOpenStream(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{}, h)
	tr := s.client(t, nil)
	old := watch(t, tr)
	equal(t, "before", get(t, tr, "/"), "HTTP/2.0 alice")

	check(t, tr.Rotate(Identity{Certificate: s.ca.issue(t, "bob", time.Now().Add(time.Hour)), RootCAs: s.ca.pool}))
	equal(t, "after", get(t, tr, "/"), "HTTP/2.0 bob")
	st := tr.Stats()
	equal(t, "generation", st.Generation, 2)
	equal(t, "draining", st.Draining, 1)
	equal(t, "full handshakes", st.FullHandshakes, 2)
	equal(t, "resumed handshakes", st.ResumedHandshakes, 0)

	tr.CloseIdleConnections()
	equal(t, "resumed session", get(t, tr, "/"), "HTTP/2.0 bob")
	equal(t, "resumed handshakes", tr.Stats().ResumedHandshakes, 1)

	close(h.end)
	rest, err := io.ReadAll(old)
	check(t, err)
	equal(t, "old stream", string(rest), "end\n")
	drained(t, tr)
}

func TestOldGenerationEndsBeforeItsCertificate(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{}, h)
	tr := s.client(t, func(o *Options) {
		o.Certificate = s.ca.issue(t, "alice", time.Now().Add(3*time.Second))
	})
	old := watch(t, tr)
	check(t, tr.Rotate(Identity{Certificate: s.ca.issue(t, "bob", time.Now().Add(time.Hour)), RootCAs: s.ca.pool}))
	var err error
	within(t, 3*time.Second, "end of the old stream", func() { _, err = io.ReadAll(old) })
	wantKind(t, err, ErrConnectionLost, false)
	equal(t, "new generation", get(t, tr, "/"), "HTTP/2.0 bob")
}

func TestExpiredCertificate(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	expired, key := inDevice(s.ca.issue(t, "alice", time.Now().Add(-time.Second)))
	tr := s.client(t, func(o *Options) { o.Certificate = expired })
	for range 500 {
		if _, err := tryGet(t, tr, "/"); !Unsent(err) {
			t.Fatal(err)
		}
	}
	_, err := tryGet(t, tr, "/")
	wantKind(t, err, ErrCertificateExpired, true)
	wantKind(t, tr.Prewarm(context.Background()), ErrCertificateExpired, true)
	_, err = tr.Upgrade().RoundTrip(request(t, context.Background(), "GET", "/", nil))
	wantKind(t, err, ErrCertificateExpired, true)
	equal(t, "dials", tr.Stats().Dials, 0)
	equal(t, "signatures", key.asked.Load(), 0)

	check(t, tr.Rotate(Identity{Certificate: s.ca.issue(t, "bob", time.Now().Add(time.Hour)), RootCAs: s.ca.pool}))
	equal(t, "renewed", get(t, tr, "/"), "HTTP/2.0 bob")
}

// A watch outlives the certificate it began with while nothing was rotated; new
// requests do not.
func TestExpiryDuringAWatch(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{}, h)
	tr := s.client(t, nil)
	body := watch(t, tr)
	tr.current.Load().notAfter = time.Now().Add(-time.Second)
	_, err := tryGet(t, tr, "/")
	wantKind(t, err, ErrCertificateExpired, true)
	close(h.end)
	rest, err := io.ReadAll(body)
	check(t, err)
	equal(t, "rest", string(rest), "end\n")
}

func TestRotateToAnotherCA(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr := s.client(t, nil)
	get(t, tr, "/")
	other := newAuthority(t)
	check(t, tr.Rotate(Identity{Certificate: s.ca.issue(t, "alice", time.Now().Add(time.Hour)), RootCAs: other.pool}))
	_, err := tryGet(t, tr, "/")
	wantKind(t, err, ErrUntrusted, true)
}

func TestRotateRefusesAKeyThatCannotSign(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr := s.client(t, nil)
	bad := s.ca.issue(t, "bob", time.Now().Add(time.Hour))
	bad.PrivateKey = "not a key"
	err := tr.Rotate(Identity{Certificate: bad, RootCAs: s.ca.pool})
	if err == nil || !strings.Contains(err.Error(), "crypto.Signer") {
		t.Errorf("got %v", err)
	}
	equal(t, "old identity", get(t, tr, "/"), "HTTP/2.0 alice")
}

func TestRotateDuringABurst(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr := s.client(t, nil)
	together(40, func(i int) {
		if i%10 == 0 {
			if err := tr.Rotate(Identity{Certificate: s.ca.issue(t, "bob", time.Now().Add(time.Hour)), RootCAs: s.ca.pool}); err != nil {
				t.Error(err)
			}
			return
		}
		for range 5 {
			if got, err := tryGet(t, tr, "/"); err != nil || !strings.HasPrefix(got, "HTTP/2.0 ") {
				t.Errorf("got %q, %v", got, err)
			}
		}
	})
	drained(t, tr)
}
