//go:build !windows

package header

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFIFO: a pipe without a writer must not hang a request.
func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New([]string{"X-A=@" + path}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
	if _, _, err := load(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("put there in between: %v", err)
	}
}
