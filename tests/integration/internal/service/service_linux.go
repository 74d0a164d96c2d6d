// Package service runs a systemd of its own beside whatever the machine has as
// process 1: in namespaces for processes, mounts and control groups, with only the
// units that it is given. The network is the machine's.
package service

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/cgroup"
	"github.com/execproxy/execproxy/tests/integration/internal/proc"
	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

//go:embed boot.sh
var boot string

const systemd = "/usr/lib/systemd/systemd"

// ErrNoGroups says that this machine gives us no control groups, which no package mends.
var ErrNoGroups = errors.New("no control groups of version 2 that we may make")

// A Manager is a running systemd.
type Manager struct {
	proc   *proc.Process
	init   int // its pid, as the machine sees it
	cgroup string
}

// Start boots one. Below files is what it sees in /etc and /usr/bin besides the
// machine's own; dir is for what the boot needs.
func Start(ctx context.Context, dir, files string) (m *Manager, err error) {
	for what, deb := range map[string]string{systemd: "systemd", "/usr/bin/unshare": "util-linux", "/usr/bin/nsenter": "util-linux"} {
		if _, err := os.Stat(what); err != nil {
			return nil, &token.MissingError{What: what, Package: deb}
		}
	}
	m = &Manager{}
	defer func() {
		if err != nil {
			m.Stop()
		}
	}()
	if err := m.group(dir); err != nil {
		return nil, err
	}
	cmd := exec.Command("/bin/sh", "-c", `echo $$ > "$1/cgroup.procs" && shift && exec "$@"`, "sh", m.cgroup,
		"unshare", "--pid", "--mount", "--cgroup", "--ipc", "--uts", "--fork", "--kill-child=SIGKILL", "--mount-proc",
		"/bin/sh", "-ec", boot, "boot", files, systemd)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	log := filepath.Join(dir, "systemd.log")
	if m.proc, err = proc.Launch("systemd", log, cmd); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return m, m.proc.Await(ctx, func(ctx context.Context) error {
		if m.init == 0 {
			children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", m.proc.PID()))
			if err != nil {
				return err
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
			if err != nil {
				return errors.New("it has no child yet")
			}
			m.init = pid
		}
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.init)); err != nil || strings.TrimSpace(string(name)) != "systemd" {
			return errors.New("systemd has not been executed yet")
		}
		_, err := m.Run(ctx, "systemctl", "is-active", "default.target")
		return err
	})
}

// group makes a control group for it, in the unified tree.
func (m *Manager) group(dir string) error {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return err
	}
	tree := ""
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			tree = f[1]
			break
		}
	}
	if tree == "" {
		return fmt.Errorf("%w: nothing of type cgroup2 is mounted", ErrNoGroups)
	}
	cgroup.Sweep(tree)
	path := filepath.Join(tree, cgroup.Name(filepath.Base(dir)))
	if err := os.Mkdir(path, 0o755); err != nil {
		return fmt.Errorf("%w: %w", ErrNoGroups, err)
	}
	m.cgroup = path
	return nil
}

// Run runs a command inside, to its end, and returns what it printed.
func (m *Manager) Run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(m.init), "--mount", "--pid", "--cgroup", "--ipc", "--uts", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// Path is a path inside, as the machine sees it.
func (m *Manager) Path(inside string) string {
	return fmt.Sprintf("/proc/%d/root%s", m.init, inside)
}

// Stop ends it and everything in it.
func (m *Manager) Stop() {
	if m.proc != nil {
		m.proc.Kill()
	}
	if m.cgroup != "" {
		cgroup.Remove(m.cgroup)
	}
}
