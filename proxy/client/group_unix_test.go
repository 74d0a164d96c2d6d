//go:build unix

package client

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// A full backlog is not a proxy that is gone: it is waited out, and the plugin is not
// executed again.
func TestBacklogFull(t *testing.T) {
	b := newBench(t)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	addr := &syscall.SockaddrUnix{Name: b.socket}
	if err := errors.Join(syscall.Bind(fd, addr), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for { // until it is full
		peer, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(peer)
		if err := syscall.SetNonblock(peer, true); err != nil {
			t.Fatal(err)
		}
		err = syscall.Connect(peer, addr)
		if full(err) {
			break
		}
		if err != nil {
			t.Skip("no backlog to fill here:", err)
		}
	}
	b.answer(mustAuthority(t).status(b.socket, time.Now().Add(time.Hour)))
	c := b.client("file")
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = c.DialContext(short, "", "")
	mustSay(t, err, "backlog", b.socket)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not DeadlineExceeded", err)
	}

	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for range 3 {
			if conn, _, err := syscall.Accept(fd); err == nil {
				defer syscall.Close(conn)
			}
		}
	}()
	conn, err := c.DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	_ = syscall.Shutdown(fd, syscall.SHUT_RDWR) // ends Accept
	<-accepting
	b.executions(1)
}

// The terminal's Ctrl-C is for the client; the plugin is of another group.
func TestOwnGroup(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	s := b.get(c, "/")
	group, err := syscall.Getpgid(s.PID)
	if err != nil {
		t.Fatal(err)
	}
	if ours, _ := syscall.Getpgid(os.Getpid()); group == ours || group != s.PID {
		t.Errorf("the plugin %d is of group %d, we are of %d", s.PID, group, ours)
	}
}
