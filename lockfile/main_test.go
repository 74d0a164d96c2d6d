package lockfile

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// roles are what the test binary does when it is run as another process:
// LOCKFILE_TEST_ROLE names the role and LOCKFILE_TEST_PATH the lock file.
const (
	roleVariable = "LOCKFILE_TEST_ROLE"
	pathVariable = "LOCKFILE_TEST_PATH"

	// fastExit keeps the race detector from a second of sleep at the end of each process.
	fastExit = "GORACE=atexit_sleep_ms=0"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role, os.Getenv(pathVariable)); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// play runs a role. It says what it has done in one line, and ends with its stdin.
func play(role, path string) error {
	switch role {
	case "hold":
		l, err := Create(path)
		if err != nil {
			return err
		}
		say("held")
		untilEOF()
		return l.Unlock()
	case "idle": // knows nothing of locks
		say("here")
		untilEOF()
		return nil
	}
	return playUnix(role, path)
}

func say(line string) { fmt.Println(line) }

func untilEOF() { _, _ = io.Copy(io.Discard, os.Stdin) }

// process is the test binary in a role of its own.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
}

// start runs a role and returns once it has said its first line, which must be want.
func start(t *testing.T, want, role, path string, change ...func(*exec.Cmd)) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, pathVariable+"="+path, fastExit)
	cmd.Stderr = os.Stderr
	for _, f := range change {
		f(cmd)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, stdin: stdin, lines: bufio.NewReader(stdout)}
	t.Cleanup(p.kill)
	p.expect(want)
	return p
}

func (p *process) expect(want string) {
	p.t.Helper()
	line, err := p.lines.ReadString('\n')
	if line = strings.TrimSpace(line); err != nil || line != want {
		p.t.Fatalf("process said %q (%v), want %q", line, err, want)
	}
}

// kill ends the process with SIGKILL and waits for it.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// end lets the process end by itself.
func (p *process) end() {
	p.t.Helper()
	_ = p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Error("process ended with", err)
	}
}
