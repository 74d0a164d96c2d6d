package daemon

import (
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execproxy/execproxy/lockfile"
)

func ends(t *testing.T, ch <-chan cause, want cause) {
	t.Helper()
	select {
	case got := <-ch:
		if got != want {
			t.Errorf("ended because %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("did not end; want %q", want)
	}
}

func still(t *testing.T, ch <-chan cause) {
	t.Helper()
	select {
	case got := <-ch:
		t.Fatalf("ended because %q", got)
	default:
	}
}

func TestIdleEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch := make(chan cause, 1)
		l := newLife(time.Minute, func(c cause) { ch <- c })
		defer l.close()
		time.Sleep(time.Hour) // a start that takes its time
		l.begin()
		time.Sleep(59 * time.Second)
		if !l.touch() {
			t.Fatal("touch after the end")
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		still(t, ch)
		l.add(1) // a connection holds the end off for as long as it is open
		time.Sleep(time.Hour)
		synctest.Wait()
		still(t, ch)
		l.add(-1)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		ends(t, ch, causeIdle)
		if l.touch() {
			t.Error("a proxy that is ending handed itself out")
		}
	})
}

func TestNoIdleEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch := make(chan cause, 1)
		l := newLife(0, func(c cause) { ch <- c })
		defer l.close()
		time.Sleep(1000 * time.Hour)
		synctest.Wait()
		still(t, ch)
	})
}

func hold(t *testing.T) *lockfile.Lock {
	t.Helper()
	l, err := lockfile.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Unlock() }) // a lock that nobody knows any more is collected, and free
	return l
}

// Three parents, one proxy: it ends after the last, however often each asked.
func TestLastLockEnds(t *testing.T) {
	ch := make(chan cause, 1)
	l := newLife(time.Hour, func(c cause) { ch <- c })
	defer l.close()
	locks := []*lockfile.Lock{hold(t), hold(t), hold(t)}
	for range 2 {
		for _, k := range locks {
			if err := l.register(k.Path()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(l.paths()); n != 3 {
		t.Fatalf("%d locks registered, want 3", n)
	}
	for i, k := range locks {
		still(t, ch)
		if err := k.Unlock(); err != nil {
			t.Fatal(err)
		}
		for len(l.paths()) != 2-i {
			time.Sleep(time.Millisecond) // until the wake-up has been seen
		}
	}
	ends(t, ch, causeLock)
	if err := l.register(hold(t).Path()); err == nil {
		t.Error("a lock was registered after the end")
	}
}

func TestFreeLockIsRefused(t *testing.T) {
	l := newLife(0, func(cause) { t.Error("ended") })
	defer l.close()
	k := hold(t)
	path := k.Path()
	if err := k.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := l.register(path); err == nil {
		t.Error("a lock that is not there was registered")
	}
}

// countedPair is our side of a connection that l counts.
func countedPair(t *testing.T, l *life) net.Conn {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := l.count(inner)
	t.Cleanup(func() { ln.Close() })
	theirs, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	ours, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	return ours
}

func TestConnectionsAreCounted(t *testing.T) {
	l := newLife(time.Hour, func(cause) {})
	defer l.close()
	s := countedPair(t, l)
	if n := l.clients(); n != 1 {
		t.Errorf("%d clients, want 1", n)
	}
	s.Close()
	s.Close() // net/http closes twice
	if n := l.clients(); n != 0 {
		t.Errorf("%d clients after the end, want 0", n)
	}
}

// A timer that fired while somebody was asking must not end the proxy under him.
func TestLateTimer(t *testing.T) {
	l := newLife(time.Hour, func(c cause) { t.Errorf("ended because %q", c) })
	defer l.close()
	l.begin()
	if !l.touch() {
		t.Fatal("ended before it began")
	}
	l.expire()
	if !l.touch() {
		t.Error("it ended although it had just been asked")
	}
}

// HTTP/2 reads and writes without blocking where it finds the socket.
func TestCountedConnShowsSocket(t *testing.T) {
	l := newLife(time.Minute, func(cause) {})
	defer l.close()
	c := countedPair(t, l)
	if w, ok := c.(interface{ NetConn() net.Conn }); !ok {
		t.Error("no way to the socket")
	} else if _, ok := w.NetConn().(*net.TCPConn); !ok {
		t.Errorf("%T", w.NetConn())
	}
}
