package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// together runs f n times at once.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-start; f(i) })
	}
	close(start)
	wg.Wait()
}

func TestBurstIsOneHandshake(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr, key := s.withDevice(t, s.ca)
	together(50, func(int) {
		if got, err := tryGet(t, tr, "/"); err != nil || got != "HTTP/2.0 alice" {
			t.Errorf("got %q, %v", got, err)
		}
	})
	equal(t, "full handshakes", s.full.Load(), 1)
	equal(t, "connections", s.accepted.Load(), 1)
	st := tr.Stats()
	equal(t, "signatures", key.asked.Load(), 1)
	equal(t, "counted signatures", st.Signatures, 1)
	equal(t, "dials", st.Dials, 1)
	equal(t, "counted full handshakes", st.FullHandshakes, 1)
	equal(t, "open streams", st.OpenStreams, 0)
}

func TestPrewarm(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr := s.client(t, nil)
	together(5, func(int) {
		if err := tr.Prewarm(context.Background()); err != nil {
			t.Error(err)
		}
	})
	get(t, tr, "/")
	equal(t, "dials", tr.Stats().Dials, 1)
	equal(t, "signatures", tr.Stats().Signatures, 1)
}

func TestReconnectsResume(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr, key := s.withDevice(t, s.ca)
	for range 10 {
		get(t, tr, "/")
		tr.CloseIdleConnections()
	}
	equal(t, "full", s.full.Load(), 1)
	equal(t, "resumed", s.resumed.Load(), 9)
	st := tr.Stats()
	equal(t, "counted full", st.FullHandshakes, 1)
	equal(t, "counted resumed", st.ResumedHandshakes, 9)
	equal(t, "signatures", key.asked.Load(), 1)
	equal(t, "counted signatures", st.Signatures, 1)
}

// A server that closes after each answer, as kube-apiserver does with 401.
func TestStormOfGoAways(t *testing.T) {
	for _, tickets := range []bool{true, false} {
		s := serve(t, serverOptions{noTickets: !tickets}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close") // GOAWAY
			w.WriteHeader(http.StatusUnauthorized)
		}))
		tr := s.client(t, nil)
		const left = 5 // signatures before the budget holds them back
		for range budgetSize - left {
			tr.budget.take(time.Now())
		}
		begin := time.Now()
		for range 15 {
			get(t, tr, "/")
		}
		st := tr.Stats()
		if tickets {
			equal(t, "signatures with tickets", st.Signatures, 1)
		} else if most := left + 2 + int(time.Since(begin)/budgetEvery); int(st.Signatures) > most {
			t.Errorf("%d signatures without tickets, want at most %d", st.Signatures, most)
		}
		if st.GoAways == 0 {
			t.Error("no GOAWAY seen")
		}
	}
}

func TestBudget(t *testing.T) {
	var b budget
	now := time.Now()
	for range budgetSize {
		check(t, b.wait(context.Background()))
		b.take(now)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if b.wait(ctx) == nil {
		t.Error("more signatures than the budget has")
	}
	check(t, b.wait(context.Background())) // one comes back with time
}

func TestMaxConcurrentStreams(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{maxStreams: 10}, h)
	tr := s.client(t, nil)
	bodies := make([]io.ReadCloser, 25)
	together(25, func(i int) { bodies[i] = watch(t, tr) })
	equal(t, "connections", s.accepted.Load(), 3)
	equal(t, "full handshakes", s.full.Load(), 1)
	equal(t, "open streams", tr.Stats().OpenStreams, 25)
	get(t, tr, "/")
	equal(t, "connections still", s.accepted.Load(), 3)
	close(h.end)
	for _, b := range bodies {
		rest, err := io.ReadAll(b)
		check(t, err)
		equal(t, "rest", string(rest), "end\n")
	}
	equal(t, "retries", tr.Stats().Retries, 0)
}

func TestPoolIsBounded(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{maxStreams: 1}, h)
	tr := s.client(t, nil)
	watch(t, tr)
	g := tr.current.Load()
	full := make([]*conn, maxConns)
	for i := range full {
		full[i] = (*g.conns.Load())[0]
	}
	real := g.conns.Swap(&full)
	_, err := tryGet(t, tr, "/")
	wantKind(t, err, ErrBusy, true)
	g.conns.Store(real)
}

func TestServerRestart(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{}, h)
	tr := s.client(t, nil)
	body := watch(t, tr)
	addr := s.addr
	check(t, s.http.Close())
	s.kill()
	_, err := io.ReadAll(body)
	wantKind(t, err, ErrConnectionLost, false)

	_, err = tryGet(t, tr, "/")
	wantKind(t, err, ErrUnreachable, true)

	s2 := serve(t, serverOptions{addr: addr, ca: s.ca}, h)
	waitOut(tr)
	equal(t, "answer", get(t, tr, "/"), "HTTP/2.0 alice")
	equal(t, "accepted", s2.accepted.Load(), 1)
}

// waitOut forgets a failed dial ahead of its time.
func waitOut(tr *Transport) {
	g := tr.current.Load()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failure = nil
	g.hold.note(nil, time.Now())
}

func TestBurstAgainstDeadServerIsOneDial(t *testing.T) {
	var dials atomic.Int64
	release := make(chan struct{})
	tr := newTransport(t, Options{Address: "127.0.0.1:1", DialContext: func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		<-release
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}})
	time.AfterFunc(20*time.Millisecond, func() { close(release) })
	together(50, func(int) {
		_, err := tryGet(t, tr, "/")
		if !errors.Is(err, ErrUnreachable) || !Unsent(err) {
			t.Errorf("got %v", err)
		}
	})
	if n := dials.Load(); n > 3 { // a late goroutine may come after the hold
		t.Errorf("%d dials", n)
	}
}

// A caller that gives up must not take the dial away from the others.
func TestDialOutlivesTheFirstCaller(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	dialling, release := make(chan struct{}), make(chan struct{})
	var d net.Dialer
	tr := s.client(t, func(o *Options) {
		o.DialContext = func(ctx context.Context, n, a string) (net.Conn, error) {
			close(dialling)
			<-release
			return d.DialContext(ctx, n, a)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan error, 1)
	go func() {
		_, err := tr.RoundTrip(request(t, ctx, "GET", "/", nil))
		first <- err
	}()
	<-dialling
	second := make(chan string, 1)
	go func() { s, _ := tryGet(t, tr, "/"); second <- s }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first: %v", err)
	}
	close(release)
	equal(t, "second", <-second, "HTTP/2.0 alice")
	equal(t, "dials", tr.Stats().Dials, 1)
}

func TestAnotherNameIsDialledAnew(t *testing.T) {
	// What a name means is asked at each dial: the two servers stand for a DNS
	// record that changed.
	ca := newAuthority(t)
	one := serve(t, serverOptions{ca: ca}, answer("one"))
	two := serve(t, serverOptions{ca: ca}, answer("two"))
	var at atomic.Pointer[string]
	at.Store(&one.addr)
	var d net.Dialer
	tr := newTransport(t, Options{Address: "api.test:6443", RootCAs: ca.pool,
		Certificate: ca.issue(t, "alice", time.Now().Add(time.Hour)),
		DialContext: func(ctx context.Context, n, a string) (net.Conn, error) {
			equal(t, "dialled", a, "api.test:6443")
			return d.DialContext(ctx, n, *at.Load())
		}})
	equal(t, "first", get(t, tr, "/"), "one")
	at.Store(&two.addr)
	equal(t, "live connection", get(t, tr, "/"), "one")
	tr.CloseIdleConnections()
	equal(t, "new dial", get(t, tr, "/"), "two")
}

func answer(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) })
}

func TestHTTP1Fallback(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{noHTTP2: true}, h)
	tr := s.client(t, nil)
	check(t, tr.Prewarm(context.Background()))
	for range 3 {
		equal(t, "answer", get(t, tr, "/"), "HTTP/1.1 alice")
	}
	equal(t, "connections", s.accepted.Load(), 1)
	body := watch(t, tr)
	check(t, tr.Rotate(Identity{Certificate: s.ca.issue(t, "bob", time.Now().Add(time.Hour)), RootCAs: s.ca.pool}))
	equal(t, "after rotation", get(t, tr, "/"), "HTTP/1.1 bob")
	close(h.end)
	rest, err := io.ReadAll(body)
	check(t, err)
	equal(t, "old stream", string(rest), "end\n")
	drained(t, tr)
}

func TestClose(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{}, h)
	tr := s.client(t, nil)
	body := watch(t, tr)
	within(t, 2*time.Second, "Close", func() { check(t, tr.Close()) })
	if _, err := io.ReadAll(body); err == nil {
		t.Error("a stream outlived Close")
	}
	_, err := tryGet(t, tr, "/")
	wantKind(t, err, ErrClosed, true)
	wantKind(t, tr.Prewarm(context.Background()), ErrClosed, true)
	if _, err := tr.Upgrade().RoundTrip(request(t, context.Background(), "GET", "/", nil)); !errors.Is(err, ErrClosed) {
		t.Errorf("upgrade: %v", err)
	}
	check(t, tr.Close())
}

// A connection that the server ends after a while is replaced ahead of the next
// request.
func TestRewarm(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	again := make(chan struct{}, 8)
	var d net.Dialer
	tr := s.client(t, func(o *Options) {
		o.DialContext = func(ctx context.Context, n, a string) (net.Conn, error) {
			again <- struct{}{}
			return d.DialContext(ctx, n, a)
		}
	})
	tr.rewarmAge = 0
	get(t, tr, "/")
	<-again
	s.kill()
	within(t, 5*time.Second, "second dial", func() { <-again })
	check(t, tr.Prewarm(context.Background()))
	equal(t, "dials", tr.Stats().Dials, 2)
	equal(t, "signatures", tr.Stats().Signatures, 1)
}
