package daemon

import (
	"strings"
	"testing"
	"time"
)

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Who reads the metrics slowly holds up nobody who counts: that is whoever reads all
// connections.
func TestFloodsSlowReader(t *testing.T) {
	var f floods
	f.count("ping")
	var out strings.Builder
	f.write(writerFunc(func(p []byte) (int, error) {
		counted := make(chan struct{})
		go func() { f.count("reset"); close(counted) }()
		select {
		case <-counted:
		case <-time.After(10 * time.Second):
			t.Error("counting waits for the reader of the metrics")
		}
		return out.Write(p)
	}), "floods_total")
	if want := "floods_total{kind=\"ping\"} 1\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
