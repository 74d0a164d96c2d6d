package client

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/execproxy/execproxy/lockfile"
)

const (
	dirPrefix = "execproxy-"
	lockName  = "lock"

	// A directory younger than this may belong to a client that has not taken its
	// lock yet.
	staleAge = time.Minute
)

// sweep removes the directories in temp that killed clients left: those whose
// lock file is ours, nobody holds, and is all there is in them. What does not
// look exactly so stays. Nobody is told of failures, there is nothing to mend.
func sweep(temp string, now time.Time) {
	entries, err := os.ReadDir(temp)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), dirPrefix) {
			continue
		}
		fi, err := e.Info()
		if err != nil || fi.Mode().Perm() != 0o700 || now.Sub(fi.ModTime()) < staleAge {
			continue
		}
		dir := filepath.Join(temp, e.Name())
		lock := filepath.Join(dir, lockName)
		l, err := lockfile.Open(lock) // checks owner, kind and mode
		if err == nil {
			_ = l.Close() // held: its client lives
			continue
		}
		if !errors.Is(err, lockfile.ErrFree) {
			continue
		}
		if os.Remove(lock) == nil {
			_ = os.Remove(dir) // not of a directory with anything else in it
		}
	}
}
