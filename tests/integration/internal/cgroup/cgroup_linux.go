// Package cgroup names and removes the control groups of the tests, so that those of
// a test process that was killed are told from those of one that runs.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// prefix starts the names; the test process and when it began follow.
const prefix = "execproxy-test-"

// Name is a name for a group of this process; what tells its groups apart, and has
// no "-".
func Name(what string) string {
	return fmt.Sprintf("%s%d-%s-%s", prefix, os.Getpid(), begun(os.Getpid()), what)
}

// Sweep removes the groups right below top of test processes that are gone.
func Sweep(top string) {
	entries, _ := os.ReadDir(top)
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), prefix)
		f := strings.Split(rest, "-")
		if pid, err := strconv.Atoi(f[0]); ours && err == nil && len(f) == 3 && begun(pid) != f[1] {
			removeTree(filepath.Join(top, e.Name()))
		}
	}
}

// Remove removes a group and all below it, whose processes have ended. The kernel
// takes a moment to notice that they have.
func Remove(dir string) {
	for deadline := time.Now().Add(5 * time.Second); !removeTree(dir) && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

// removeTree tells whether the group is gone.
func removeTree(dir string) bool {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		_ = syscall.Rmdir(dirs[i])
	}
	_, err := os.Lstat(dir)
	return errors.Is(err, fs.ErrNotExist)
}

// begun is when a process started, in the kernel's ticks, or "" without one.
func begun(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := bytes.Cut(stat, []byte(") ")) // the name may have spaces
	if f := strings.Fields(string(after)); len(f) > 19 {
		return f[19]
	}
	return ""
}
