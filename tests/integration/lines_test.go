//go:build linux

package integration

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// lines collects what a program prints and lets a test wait for a part of it.
type lines struct {
	mu     sync.Mutex
	text   strings.Builder
	more   chan struct{} // closed and replaced when text grows
	closed bool
}

func newLines() *lines { return &lines{more: make(chan struct{})} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	close(l.more)
	l.more = make(chan struct{})
	return len(p), nil
}

func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.more)
	l.more = make(chan struct{})
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await waits until the program has printed want, and returns all it printed.
func (l *lines) await(t *testing.T, want string) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		text, more, closed := l.text.String(), l.more, l.closed
		l.mu.Unlock()
		if strings.Contains(text, want) {
			return text
		}
		if closed {
			t.Fatalf("the program ended before it printed %q; it printed: %s", want, text)
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("the program does not print %q; it printed: %s", want, text)
		}
	}
}
