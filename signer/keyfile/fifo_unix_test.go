//go:build !windows

package keyfile

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

// TestFIFO: a pipe without a writer must not hang a start.
func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	must(t, syscall.Mkfifo(path, 0o600))
	if _, err := Load(path, ""); !errors.Is(err, ErrNotRegular) {
		t.Errorf("got %v", err)
	}
}
