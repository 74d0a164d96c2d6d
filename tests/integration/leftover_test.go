//go:build linux

package integration

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// aliveFile is locked by the run whose directory it is in. The kernel frees it.
const aliveFile = "alive"

// ownDirectory makes a run's directory in top. It is the run's until the file is closed.
func ownDirectory(top string) (dir string, alive *os.File, err error) {
	if dir, err = os.MkdirTemp(top, "ept-"); err != nil {
		return "", nil, err
	}
	// Under its name it is locked from the beginning.
	name := filepath.Join(dir, aliveFile)
	if alive, err = os.OpenFile(name+".new", os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		err = errors.Join(syscall.Flock(int(alive.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), os.Rename(name+".new", name))
	}
	return dir, alive, err
}

// sweepRuns removes what runs that were killed have left in top: directories, and
// daemons that nobody ends any more.
func sweepRuns(top string) {
	dirs, _ := filepath.Glob(filepath.Join(top, "ept-*"))
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
			continue
		}
		alive, err := os.OpenFile(filepath.Join(dir, aliveFile), os.O_RDWR, 0)
		if err != nil {
			continue // it begins just now, or is kept
		}
		if syscall.Flock(int(alive.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			for pid := range processes(dir) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			_ = os.RemoveAll(dir)
		}
		_ = alive.Close()
	}
}

// TestSweepRuns: only what is nobody's any more.
func TestSweepRuns(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	running, alive, err := ownDirectory(top)
	must(t, err)
	killed, dead, err := ownDirectory(top)
	must(t, err)
	must(t, dead.Close())
	kept := filepath.Join(top, "ept-kept")
	must(t, os.Mkdir(kept, 0o700))
	sweepRuns(top)
	for dir, want := range map[string]bool{running: true, killed: false, kept: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", dir, err, want)
		}
	}
	must(t, alive.Close())
}
