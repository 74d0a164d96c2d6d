package client

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/execproxy/execproxy/lockfile"
)

func TestSweep(t *testing.T) {
	temp := t.TempDir()
	place := func(name string, files ...string) string {
		dir := filepath.Join(temp, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	killed := place("execproxy-1", "lock")
	living := place("execproxy-2")
	l, err := lockfile.Create(filepath.Join(living, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Unlock() }()
	keep := []string{
		living, place("somebody", "lock"), place("execproxy-3", "lock", "letter"), place("execproxy-4"), place("execproxy-5", "other"),
	}
	open := place("execproxy-6", "lock")
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	keep = append(keep, open)

	sweep(temp, time.Now())
	if _, err := os.Stat(filepath.Join(killed, "lock")); err != nil {
		t.Errorf("a young directory was touched: %v", err)
	}
	sweep(temp, time.Now().Add(2*staleAge))
	if _, err := os.Stat(killed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed client left is still there: %v", err)
	}
	for _, dir := range keep {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("swept away: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(open, "lock")); err != nil {
		t.Errorf("swept in a directory that is open to others: %v", err)
	}
}
