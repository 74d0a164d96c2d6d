package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/execproxy/execproxy/tests/integration/internal/cgroup"
)

// ErrNoCgroups is what StartNode fails with where a kubelet cannot have cgroups.
var ErrNoCgroups = errors.New("no cgroups for a kubelet here")

const (
	cgroupTop = "/sys/fs/cgroup"
	// Some versions of runc make a cgroup of version 2 beside those of version 1.
	unifiedBeside = cgroupTop + "/unified"
)

var cgroups atomic.Int64

// nodeGroup is a cgroup of ours, of the same name in every hierarchy.
type nodeGroup struct {
	name string
	dirs []string
}

// newCgroup makes one in all hierarchies, and removes what earlier test
// processes, killed, have left there.
func newCgroup() (*nodeGroup, error) {
	tops, unified, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, top := range append([]string{unifiedBeside}, tops...) {
		cgroup.Sweep(top)
	}
	g := &nodeGroup{name: cgroup.Name(strconv.FormatInt(cgroups.Add(1), 10))}
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
		if !slices.Contains(strings.Fields(string(have)), c) {
			return fmt.Errorf("%w: no controller %s for a new cgroup in %s: %w", ErrNoCgroups, c, top, errors.Join(errs...))
		}
	}
	return nil
}

// remove removes the group, whose processes have ended.
func (g *nodeGroup) remove() {
	for _, dir := range g.dirs {
		cgroup.Remove(dir)
	}
	cgroup.Remove(filepath.Join(unifiedBeside, g.name))
}
