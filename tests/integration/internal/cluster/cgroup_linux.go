package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrNoCgroups is what StartNode fails with where a kubelet cannot have cgroups.
var ErrNoCgroups = errors.New("no cgroups for a kubelet here")

const (
	cgroupTop = "/sys/fs/cgroup"
	// Some versions of runc make a cgroup of version 2 beside those of version 1.
	unifiedBeside = cgroupTop + "/unified"
)

// cgroupPrefix starts the names of our cgroups; the test process and when it
// began follow, so that those of a process that is gone can be told.
const cgroupPrefix = "execproxy-test-"

var cgroups atomic.Int64

// cgroup is a cgroup of ours, of the same name in every hierarchy.
type cgroup struct {
	name string
	dirs []string
}

// newCgroup makes one in all hierarchies, and removes what earlier test
// processes, killed, have left there.
func newCgroup() (*cgroup, error) {
	tops, unified, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, top := range append([]string{unifiedBeside}, tops...) {
		sweep(top)
	}
	g := &cgroup{name: fmt.Sprintf("%s%d-%s-%d", cgroupPrefix, os.Getpid(), begun(os.Getpid()), cgroups.Add(1))}
	for _, top := range tops {
		dir := filepath.Join(top, g.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			g.remove()
			return nil, fmt.Errorf("%w: %w", ErrNoCgroups, err)
		}
		g.dirs = append(g.dirs, dir)
		if err := prepareCgroup(top, dir, unified); err != nil {
			g.remove()
			return nil, err
		}
	}
	return g, nil
}

// hierarchies returns where a kubelet needs a cgroup: the one of version 2, or
// all that are mounted of version 1.
func hierarchies() (tops []string, unified bool, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(cgroupTop, &st); err != nil {
		return nil, false, fmt.Errorf("%w: %s: %w", ErrNoCgroups, cgroupTop, err)
	}
	const cgroup2Magic = 0x63677270
	if st.Type == cgroup2Magic {
		return []string{cgroupTop}, true, nil
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, false, err
	}
	missing := map[string]bool{"cpu": true, "cpuacct": true, "cpuset": true, "memory": true, "pids": true, "devices": true, "freezer": true}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != "cgroup" {
			continue
		}
		tops = append(tops, f[1])
		for o := range strings.SplitSeq(f[3], ",") {
			delete(missing, o)
		}
	}
	if len(missing) > 0 {
		var names []string
		for name := range missing {
			names = append(names, name)
		}
		return nil, false, fmt.Errorf("%w: not mounted below %s: %s", ErrNoCgroups, cgroupTop, strings.Join(names, ", "))
	}
	return tops, false, nil
}

func prepareCgroup(top, dir string, unified bool) error {
	if !unified {
		// A new cpuset (version 1) is empty, and nothing can be put into it.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			data, err := os.ReadFile(filepath.Join(top, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
			}
			if err != nil {
				return fmt.Errorf("%w: %w", ErrNoCgroups, err)
			}
		}
		return nil
	}
	need := []string{"cpu", "cpuset", "memory", "pids"}
	var errs []error
	for _, c := range need {
		errs = append(errs, os.WriteFile(filepath.Join(top, "cgroup.subtree_control"), []byte("+"+c), 0o600))
	}
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoCgroups, err)
	}
	for _, c := range need {
		if !bytes.Contains(append(have, ' '), []byte(c)) {
			return fmt.Errorf("%w: no controller %s for a new cgroup in %s: %w", ErrNoCgroups, c, top, errors.Join(errs...))
		}
	}
	return nil
}

// remove removes the cgroup and all below it, whose processes have ended. The
// kernel takes a moment to notice that they have.
func (g *cgroup) remove() {
	deadline := time.Now().Add(5 * time.Second)
	for _, dir := range g.dirs {
		for !removeTree(dir) && time.Now().Before(deadline) {
			time.Sleep(20 * time.Millisecond)
		}
	}
	removeTree(filepath.Join(unifiedBeside, g.name))
}

// removeTree removes a cgroup with its children and tells whether it is gone.
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

// sweep removes the cgroups of test processes that are gone.
func sweep(top string) {
	entries, _ := os.ReadDir(top)
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), cgroupPrefix)
		f := strings.Split(rest, "-")
		if pid, err := strconv.Atoi(f[0]); ours && err == nil && len(f) == 3 && begun(pid) != f[1] {
			removeTree(filepath.Join(top, e.Name()))
		}
	}
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
