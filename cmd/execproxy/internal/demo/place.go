package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// place is the private directory in which all of the demonstration happens, runtime and state directory of the
// daemons included: it neither meets nor disturbs the proxies this user really runs.
type place struct {
	dir string
	env []string // for everything that is executed
}

// socketRoom is what comes after the directory in the longest socket path, and socketMax what fits in sun_path on
// every system.
const (
	socketRoom = len("/xp0123456789/execproxy/0123456789abcdef.sock.ctl")
	socketMax  = 103
)

func newPlace(tempDir string, environ []string) (*place, error) {
	if len(tempDir)+socketRoom > socketMax && runtime.GOOS != "windows" {
		tempDir = "/tmp" // macOS gives each user a long one; ours is 0700 anyway
	}
	dir, err := os.MkdirTemp(tempDir, "xp")
	if err != nil {
		return nil, fmt.Errorf("making a private directory: %w", err)
	}
	// The plugin sees real paths, as its own checks for symbolic links do (/tmp is one on macOS).
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	p := &place{dir: dir}
	// Nothing of the caller's own configuration may reach the demonstration: EXECPROXY_*, AWS_*, HTTPS_PROXY, KUBECONFIG.
	keep := []string{"PATH", "SYSTEMROOT", "PATHEXT", "COMSPEC", "LANG", "GOCOVERDIR"}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(keep, strings.ToUpper(name)) {
			p.env = append(p.env, kv)
		}
	}
	state := filepath.Join(dir, "state")
	p.env = append(p.env, "HOME="+dir, "USERPROFILE="+dir, "LOCALAPPDATA="+state, "XDG_STATE_HOME="+state,
		"XDG_RUNTIME_DIR="+dir, "TMPDIR="+dir, "TMP="+dir, "TEMP="+dir)
	return p, nil
}

// write puts a private file into the place and returns its path.
func (p *place) write(name string, data []byte) (string, error) {
	path := filepath.Join(p.dir, name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("writing %s: %w", name, err)
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		return "", fmt.Errorf("writing %s: %w", name, err)
	}
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("writing %s: %w", name, err)
	}
	return path, nil
}

// command runs the binary in the place's environment and returns its stdout.
func (p *place) command(ctx context.Context, executable string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, executable, args...)
	cmd.Env, cmd.Dir = p.env, p.dir
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(executable), strings.Join(args, " "), err,
			strings.TrimSpace(string(e.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", filepath.Base(executable), strings.Join(args, " "), err)
	}
	return out, nil
}

func (p *place) remove() error {
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("removing the private directory: %w", err)
	}
	return nil
}
