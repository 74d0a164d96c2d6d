package daemon

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/execproxy/execproxy/lockfile"
)

// A cause is why a proxy ends.
type cause string

const (
	causeLock   cause = "the parent's lock is free"
	causeIdle   cause = "no client for the idle time"
	causeStop   cause = "asked to stop"
	causeSignal cause = "signal"
	causeFailed cause = "a listener failed"
)

// life decides when a proxy ends: when the last registered lock comes free; if
// none was ever registered and idle is set, when no client has been connected
// for that long.
type life struct {
	idle time.Duration // 0: never
	end  func(cause)

	mu      sync.Mutex
	ended   bool
	conns   int
	locks   []*lockfile.Parent
	timer   *time.Timer
	until   time.Time // when the idle time is over
	waiters sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
}

func newLife(idle time.Duration, end func(cause)) *life {
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{idle: idle, end: end, ctx: ctx, cancel: cancel}
	return l
}

// begin starts the idle time. A proxy that is still starting is not idle.
func (l *life) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle > 0 && l.timer == nil && !l.ended {
		l.until = time.Now().Add(l.idle)
		l.timer = time.AfterFunc(l.idle, l.expire)
	}
}

// expire runs when the idle time is over. The timer is only stopped or started
// under the lock, but may have fired just before, and whoever was asking in that
// moment has a document by now; so what it means is looked at again.
func (l *life) expire() {
	l.mu.Lock()
	over := !l.ended && l.conns == 0 && len(l.locks) == 0 && !time.Now().Before(l.until)
	l.ended = l.ended || over
	l.mu.Unlock()
	if over {
		l.end(causeIdle)
	}
}

// touch starts the idle time anew: somebody asked for the document and is about
// to connect. It reports false when the end has been decided already.
func (l *life) touch() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.rearm()
	return true
}

func (l *life) rearm() {
	if l.timer == nil {
		return
	}
	l.timer.Stop()
	if l.conns == 0 && len(l.locks) == 0 {
		l.until = time.Now().Add(l.idle)
		l.timer.Reset(l.idle)
	}
}

// register binds the proxy to a parent's lock. The same lock counts once,
// however often its parent asks.
func (l *life) register(path string) error {
	p, err := lockfile.Open(path)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.locks {
		if q.Same(p) {
			return p.Close()
		}
	}
	if l.ended {
		_ = p.Close()
		return errEnding
	}
	l.locks = append(l.locks, p)
	l.rearm()
	l.waiters.Go(func() {
		// An error that is not ours means that nobody can tell any more whether
		// the parent lives: that ends like its death.
		err := p.Wait(l.ctx)
		_ = p.Close()
		if l.ctx.Err() == nil || err == nil {
			l.release(p)
		}
	})
	return nil
}

// release forgets a lock that came free, and ends the proxy with the last one.
func (l *life) release(p *lockfile.Parent) {
	l.mu.Lock()
	for i, q := range l.locks {
		if q == p {
			l.locks = append(l.locks[:i], l.locks[i+1:]...)
			break
		}
	}
	last := len(l.locks) == 0 && !l.ended
	l.ended = l.ended || last
	l.mu.Unlock()
	if last {
		l.end(causeLock)
	}
}

// paths is the registered locks' paths.
func (l *life) paths() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]string, 0, len(l.locks))
	for _, p := range l.locks {
		out = append(out, p.Path())
	}
	return out
}

// close ends the waiting; no cause comes after it.
func (l *life) close() {
	l.mu.Lock()
	l.ended = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.cancel()
	l.waiters.Wait()
}

// clients is the number of open client connections.
func (l *life) clients() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns
}

// count wraps a listener so that its connections hold off the idle end, however
// they are used: http.Server forgets a connection once it is upgraded.
func (l *life) count(ln net.Listener) net.Listener { return &countingListener{ln, l} }

type countingListener struct {
	net.Listener
	life *life
}

func (c *countingListener) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.life.add(1)
	return &countedConn{Conn: conn, life: c.life}, nil
}

type countedConn struct {
	net.Conn
	life *life
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.life.add(-1) })
	return c.Conn.Close()
}

// NetConn is what HTTP/2 reads and writes without blocking.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

// CloseWrite lets an upgraded stream be closed one way.
func (c *countedConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

func (l *life) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns += n
	l.rearm()
}
