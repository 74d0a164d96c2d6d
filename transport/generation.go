package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// failureHold is how long a failed dial answers for the next ones, so that
	// a burst against a dead server is one dial and not one after the other.
	failureHold = 25 * time.Millisecond
	// maxConns bounds the pool of one generation: a server that allows 100
	// streams on each serves 25,600 watches through it.
	maxConns = 256
	// http1Hold is how long a server without HTTP/2 is believed to be one.
	http1Hold = 10 * time.Minute
	// drainMargin is how long before its certificate ends an old generation does.
	drainMargin = 10 * time.Second
	// A connection that lived for rewarmAge and ended is dialled again ahead of
	// the next request, if the last one is no older than rewarmUse. (An idle
	// kube-apiserver says GOAWAY after 90 seconds.)
	rewarmAge = 10 * time.Second
	rewarmUse = 5 * time.Minute
	// usedStep is how exact the time of the last request is known.
	usedStep = time.Second
)

var (
	errRetired = errors.New("transport: the identity was rotated") // try the current generation
	errHTTP1   = errors.New("transport: the server has no HTTP/2") // take the HTTP/1.1 way

	errGoAwayAtOnce = errors.New("the server ended the connection as soon as it was made")
)

// generation is everything that belongs to one identity.
type generation struct {
	t        *Transport
	number   uint64
	id       Identity
	notAfter time.Time
	sessions tls.ClientSessionCache
	http1    *http.Transport // where the server has no HTTP/2
	upgrade  *http.Transport // one connection per request

	ctx       context.Context // ends when the generation is cut
	cancel    context.CancelFunc
	retiredCh chan struct{} // closed by retire
	used      atomic.Int64  // wall clock of the last request, Unix nanoseconds

	conns atomic.Pointer[[]*conn] // usable ones; replaced as a whole under mu
	hold  hold                    // of the key and the certificate

	mu         sync.Mutex
	raws       map[*rawConn]struct{}
	call       *dialCall // the dial under way
	failure    error     // of the last dial
	failedAt   time.Time
	http1Until time.Time
	spare      *tls.Conn // an HTTP/1.1 connection that the pool may take
	spareAt    time.Time
	retired    bool
	ended      bool
	empty      chan struct{} // closed when retired and no connection is left
}

// dialCall is one dial that many requests wait for.
type dialCall struct {
	done chan struct{}
	err  error
}

func newGeneration(t *Transport, number uint64, id Identity) (*generation, error) {
	notAfter, err := id.notAfter()
	if err != nil {
		return nil, err
	}
	g := &generation{
		t:         t,
		number:    number,
		id:        id,
		notAfter:  notAfter,
		sessions:  tls.NewLRUClientSessionCache(0),
		raws:      make(map[*rawConn]struct{}),
		retiredCh: make(chan struct{}),
		empty:     make(chan struct{}),
	}
	g.conns.Store(new([]*conn))
	g.ctx, g.cancel = context.WithCancel(t.ctx)
	g.http1, g.upgrade = newHTTP1(g)
	return g, nil
}

// past reports whether the certificate has ended.
func (g *generation) past(now time.Time) bool { return !g.notAfter.IsZero() && !now.Before(g.notAfter) }

// expired returns an error when the certificate has ended by the wall clock.
func (g *generation) expired(now time.Time) error {
	if !g.past(now) {
		return nil
	}
	return &UpstreamError{Kind: ErrCertificateExpired, Server: g.t.o.Address, unsent: true,
		Hint: fmt.Sprintf("it ended at %s and the clock here says %s: renew the certificate",
			g.notAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))}
}

// conn returns a connection with one stream reserved, dialling if it must.
func (g *generation) conn(ctx context.Context) (*conn, error) {
	for {
		conns := g.conns.Load()
		for _, c := range *conns {
			if c.reserve() {
				return c, nil
			}
		}
		if err := g.more(ctx, conns); err != nil {
			return nil, err
		}
	}
}

// more returns when there may be a connection that was not in conns.
func (g *generation) more(ctx context.Context, conns *[]*conn) error {
	g.mu.Lock()
	if g.conns.Load() != conns {
		g.mu.Unlock()
		return nil
	}
	call, err := g.dialLocked()
	g.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-call.done:
		return call.err
	case <-g.retiredCh:
		return errRetired
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dialLocked joins the dial under way or starts one.
func (g *generation) dialLocked() (*dialCall, error) {
	now := time.Now()
	switch {
	case g.retired, g.ended:
		return nil, errRetired
	case now.Before(g.http1Until):
		return nil, errHTTP1
	case g.call != nil:
		return g.call, nil
	case g.failure != nil && now.Sub(g.failedAt) < failureHold && !costly(g.failure):
		return nil, g.failure
	case len(*g.conns.Load()) >= maxConns:
		return nil, &UpstreamError{Kind: ErrBusy, Server: g.t.o.Address, unsent: true,
			Hint: fmt.Sprintf("all streams of %d connections are taken; close watches or raise the server's stream limit", maxConns)}
	}
	if err := g.hold.check(now); err != nil {
		return nil, err
	}
	call := &dialCall{done: make(chan struct{})}
	extra := slices.ContainsFunc(*g.conns.Load(), (*conn).full)
	if !g.t.spawn(func() { g.dial(call, extra) }) {
		return nil, errRetired
	}
	g.call = call
	return call, nil
}

// dial makes one connection for the pool, with the life of the generation and
// not of the request that happened to ask first.
func (g *generation) dial(call *dialCall, extra bool) {
	c, h1, err := g.connect(extra)
	if err != nil && g.ctx.Err() != nil {
		err = errRetired
	}
	g.mu.Lock()
	g.call = nil
	switch {
	case err != nil:
		g.failure, g.failedAt = err, time.Now()
	case g.retired || g.ended:
		err = errRetired
	case h1 != nil:
		g.failure, err = nil, errHTTP1
		g.http1Until = time.Now().Add(http1Hold)
		g.spare, h1 = h1, g.spare
		g.spareAt = time.Now()
	case c.dead.Load():
		err = dialError(g.t.o.Address, "", g.t.o.DialTimeout, errGoAwayAtOnce, nil)
		g.failure, g.failedAt = err, time.Now()
	default:
		g.failure = nil
		conns := append(slices.Clone(*g.conns.Load()), c)
		g.conns.Store(&conns)
	}
	call.err = err
	if !errors.Is(err, errHTTP1) { // there the first answer tells
		g.hold.note(err, time.Now())
	}
	g.mu.Unlock()
	if h1 != nil {
		_ = h1.Close()
	}
	if err != nil && c != nil {
		c.close()
	}
	close(call.done)
	g.t.log.Debug("dialled", "server", g.t.o.Address, "generation", g.number, "error", err)
}

func (g *generation) connect(extra bool) (*conn, *tls.Conn, error) {
	ctx, cancel := context.WithTimeout(g.ctx, g.t.o.DialTimeout)
	defer cancel()
	tc, err := g.dialTLS(ctx, "h2", "http/1.1")
	if err != nil {
		return nil, nil, err
	}
	if tc.ConnectionState().NegotiatedProtocol != "h2" {
		return nil, tc, nil
	}
	c, err := g.newConn(ctx, tc, extra)
	if err != nil {
		g.t.dialErrors.Add(1)
		return nil, nil, dialError(g.t.o.Address, "", g.t.o.DialTimeout, err, nil)
	}
	return c, nil, nil
}

// takeSpare gives the HTTP/1.1 pool the connection that the dial for HTTP/2 left.
func (g *generation) takeSpare() *tls.Conn {
	g.mu.Lock()
	c, fresh := g.spare, time.Since(g.spareAt) < 5*time.Second
	g.spare = nil
	g.mu.Unlock()
	if c != nil && !fresh {
		_ = c.Close() // the server may have given up on it
		return nil
	}
	return c
}

// drop takes a connection that accepts no more streams out of the pool, and
// reports whether it was there.
func (g *generation) drop(c *conn) bool {
	c.dead.Store(true)
	now := g.t.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	conns := slices.Clone(*g.conns.Load())
	i := slices.Index(conns, c)
	if i < 0 {
		return false
	}
	conns = slices.Delete(conns, i, i+1)
	g.conns.Store(&conns)
	again := len(conns) == 0 && !g.retired && !g.ended && !c.extra && g.expired(now) == nil &&
		time.Since(c.born) >= g.t.rewarmAge && now.Sub(time.Unix(0, g.used.Load())) < rewarmUse
	if again {
		_, _ = g.dialLocked() // a failure is the next request's to tell
	}
	return true
}

func (g *generation) track(c *rawConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return false
	}
	g.raws[c] = struct{}{}
	return true
}

func (g *generation) forget(c *rawConn) {
	g.mu.Lock()
	delete(g.raws, c)
	g.emptyLocked()
	g.mu.Unlock()
}

func (g *generation) emptyLocked() {
	if g.retired && !g.ended && len(g.raws) == 0 {
		g.ended = true
		close(g.empty)
	}
}

// retire ends the life of g for new requests; its streams go on.
func (g *generation) retire() {
	g.mu.Lock()
	g.retired = true
	close(g.retiredCh)
	conns := *g.conns.Swap(new([]*conn))
	spare := g.spare
	g.spare = nil
	g.emptyLocked()
	g.mu.Unlock()
	if spare != nil {
		_ = spare.Close()
	}
	g.http1.CloseIdleConnections()
	for _, c := range conns {
		c.drain()
	}
	g.t.spawn(g.await)
}

// await cuts g when it is empty, or shortly before its certificate ends.
func (g *generation) await() {
	defer g.t.forget(g)
	defer g.cut()
	var deadline time.Time
	if !g.notAfter.IsZero() {
		left := max(g.notAfter.Sub(g.t.now()), 0)
		deadline = g.notAfter.Add(-min(drainMargin, left/10))
	}
	for {
		// In short steps: timers stand still while a machine sleeps, the end
		// of a certificate does not.
		step := 30 * time.Second
		if !deadline.IsZero() {
			left := deadline.Sub(g.t.now())
			if left <= 0 {
				g.t.log.Info("old identity ended with streams open", "server", g.t.o.Address, "generation", g.number)
				return
			}
			step = min(step, left)
		}
		timer := time.NewTimer(step)
		select {
		case <-g.empty:
			timer.Stop()
			return
		case <-g.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// cut ends every connection of g at once.
func (g *generation) cut() {
	g.cancel()
	g.mu.Lock()
	g.ended = true
	conns := *g.conns.Swap(new([]*conn))
	raws := make([]*rawConn, 0, len(g.raws))
	for c := range g.raws {
		raws = append(raws, c)
	}
	g.mu.Unlock()
	for _, c := range conns {
		c.dead.Store(true)
	}
	for _, raw := range raws {
		if c := raw.h2.Load(); c != nil {
			c.close()
		} else {
			_ = raw.Close()
		}
	}
	g.http1.CloseIdleConnections()
	g.upgrade.CloseIdleConnections()
}
