//go:build linux

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// patience is how long a test waits for something that should come at once.
const patience = 30 * time.Second

// home is the world of one test: its own home, runtime, state and temporary
// directories, so that tests share no daemon and nothing can leak between them.
type home struct {
	t   *testing.T
	dir string
	bin string // the program under test, by a name that tells its processes from other tests'
	uid int    // of the programs run in it; -1: our own
	gid int    // the same number, unless the test says otherwise
	env map[string]string

	started []*background
}

var homes atomic.Int64

func newHome(t *testing.T) *home { return newHomeFor(t, -1) }

func newHomeFor(t *testing.T, uid int) *home {
	t.Helper()
	h := &home{t: t, uid: uid, gid: uid, dir: filepath.Join(suite.dir, "h"+strconv.FormatInt(homes.Add(1), 10))}
	for _, d := range []string{"", "home", "r", "state", "tmp"} {
		must(t, os.Mkdir(h.path(d), 0o700))
		if uid >= 0 {
			must(t, os.Chown(h.path(d), uid, uid))
		}
	}
	h.bin = h.path(filepath.Base(suite.bin))
	must(t, os.Link(suite.bin, h.bin))
	h.env = map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": h.path("home"), "TMPDIR": h.path("tmp"),
		"XDG_RUNTIME_DIR": h.path("r"), "XDG_STATE_HOME": h.path("state"),
		"AWS_EC2_METADATA_DISABLED": "true",
		// With the race detector: no second of waiting at each exit, reports into files.
		"GORACE": "atexit_sleep_ms=0 log_path=" + h.path("race"),
	}
	t.Cleanup(h.clean)
	return h
}

func (h *home) path(name string) string    { return filepath.Join(h.dir, name) }
func (h *home) runtime(name string) string { return filepath.Join(h.dir, "r", "execproxy", name) }

// file writes a file into the home, readable for its user alone.
func (h *home) file(name, content string) string {
	h.t.Helper()
	must(h.t, pki.WriteFile(h.path(name), []byte(content)))
	h.own(h.path(name))
	return h.path(name)
}

func (h *home) own(paths ...string) {
	for _, p := range paths {
		if h.uid >= 0 {
			must(h.t, os.Chown(p, h.uid, h.gid))
		}
	}
}

// user makes a client certificate of the cluster, in files of this home.
func (h *home) user(name string, groups ...string) (cert, key string) {
	h.t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: name, Organizations: groups})
	must(h.t, err)
	cert, key, err = pair.Write(h.dir, name)
	must(h.t, err)
	h.own(cert, key)
	return cert, key
}

// clean ends what the test left running, as a user would, and insists that
// nothing is left then.
func (h *home) clean() {
	if len(processes(h.dir)) > 0 || len(h.remains()) > 0 {
		if r := h.run(h.bin, "stop", "--all"); r.code != 0 {
			h.t.Errorf("execproxy stop --all: %s", r)
		}
	}
	for _, b := range h.started {
		b.signal(syscall.SIGKILL)
		<-b.done
	}
	// One that was ending already is none of stop's any more.
	for deadline := time.Now().Add(2 * time.Second); len(processes(h.dir)) > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	for pid, what := range processes(h.dir) {
		h.t.Errorf("process %d is left after stop --all: %s", pid, what)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	races, _ := filepath.Glob(h.path("race*"))
	for _, race := range races {
		h.t.Errorf("data race: %s", proc.Tail(race, 80))
	}
	if files := h.remains(); len(files) > 0 {
		h.t.Errorf("left in the runtime and temporary directories: %q", files)
	}
	if h.t.Failed() {
		h.logs()
	}
	if os.Getenv("EXECPROXY_TEST_KEEP") == "" {
		must(h.t, os.RemoveAll(h.dir))
	}
}

// remains lists anything in the temporary directory, and in the runtime
// directory anything but the empty files that daemons lock there.
func (h *home) remains() (files []string) {
	for _, dir := range []string{"r", "tmp"} {
		_ = filepath.WalkDir(h.path(dir), func(path string, d fs.DirEntry, err error) error {
			lock := strings.HasSuffix(path, ".lock") || strings.HasSuffix(path, ".start")
			if err == nil && path != h.path(dir) && (dir == "tmp" || d.Type()&(fs.ModeDir|fs.ModeSymlink) == 0 && !lock) {
				files = append(files, path)
			}
			return nil
		})
	}
	return files
}

func (h *home) logs() {
	logs, _ := filepath.Glob(h.path("state/execproxy/log/*"))
	for _, log := range logs {
		h.t.Logf("the end of %s:\n%s", log, proc.Tail(log, 40))
	}
}

// result is what became of a program.
type result struct {
	args           []string
	stdout, stderr string
	code           int // 128+n when a signal ended it
	took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("%q: exit code %d after %v\nstdout: %s\nstderr: %s", r.args, r.code, r.took.Round(time.Millisecond), r.stdout, r.stderr)
}

// ok fails the test unless the program succeeded, and returns what it printed.
func (r result) ok(t *testing.T) string {
	t.Helper()
	if r.code != 0 {
		t.Fatal(r)
	}
	return r.stdout
}

// command prepares a program to run in this home.
func (h *home) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = h.path("home")
	for k, v := range h.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if h.uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(h.uid), Gid: uint32(h.gid)}
	}
	return cmd
}

// run runs a program in this home to its end: until it has exited and nobody
// holds its stdout or stderr any more.
func (h *home) run(args ...string) result { return h.do(h.command(args...)) }

func (h *home) do(cmd *exec.Cmd) result {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	if err := proc.StartCmd(cmd); err != nil {
		h.t.Fatalf("starting %q: %v", cmd.Args, err)
	}
	timer := time.AfterFunc(2*patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err := cmd.Wait()
	r := result{args: cmd.Args, stdout: stdout.String(), stderr: stderr.String(), took: time.Since(begin), code: exitCode(h.t, err)}
	if !timer.Stop() {
		h.t.Fatalf("did not end in time: %s", r)
	}
	return r
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		t.Fatal(err)
	case exit.Sys().(syscall.WaitStatus).Signaled():
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
	}
	return exit.ExitCode()
}

// execproxy runs the program under test.
func (h *home) execproxy(args ...string) result {
	h.t.Helper()
	return h.run(append([]string{h.bin}, args...)...)
}

// kubectl runs kubectl with a kubeconfig.
func (h *home) kubectl(kubeconfig string, args ...string) result {
	h.t.Helper()
	return h.run(append([]string{suite.kubectl, "--kubeconfig=" + kubeconfig}, args...)...)
}

// background is a program that runs beside the test.
type background struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *lines
	stderr *lines
	done   chan struct{}
	code   int
}

// start starts a program in this home; it is killed at the end of the test.
func (h *home) start(args ...string) *background { return h.startCmd(h.command(args...)) }

func (h *home) startCmd(cmd *exec.Cmd) *background {
	h.t.Helper()
	b := &background{t: h.t, cmd: cmd, stdout: newLines(), stderr: newLines(), done: make(chan struct{})}
	stdin, err := cmd.StdinPipe()
	must(h.t, err)
	b.stdin, cmd.Stdout, cmd.Stderr = stdin, b.stdout, b.stderr
	must(h.t, proc.StartCmd(cmd))
	go func() {
		err := cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			if b.code = exit.ExitCode(); b.code < 0 {
				b.code = 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
			}
		}
		b.stdout.close()
		b.stderr.close()
		close(b.done)
	}()
	h.started = append(h.started, b)
	return b
}

// signal sends a signal to the program's process group.
func (b *background) signal(s syscall.Signal) {
	select {
	case <-b.done:
	default:
		_ = syscall.Kill(-b.cmd.Process.Pid, s)
	}
}

// wait waits for the program's end and returns its exit code.
func (b *background) wait() int {
	b.t.Helper()
	select {
	case <-b.done:
		return b.code
	case <-time.After(patience):
		b.t.Fatalf("%q does not end\nstdout: %s\nstderr: %s", b.cmd.Args, b.stdout, b.stderr)
		return 0
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until check returns nil; for states that tell nobody of
// their coming.
func eventually(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %v", limit, err)
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := cluster.FreePort(0)
	must(t, err)
	return port
}
