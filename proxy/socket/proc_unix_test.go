//go:build unix

package socket

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// proc is a process in a role.
type proc struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
}

// start runs a process in a role; change, if any, sees its command before.
func start(t testing.TB, change func(*exec.Cmd), role string, args ...string) *proc {
	t.Helper()
	self := os.Args[0]
	if runtime.GOOS == "linux" {
		self = "/proc/self/exe" // another uid cannot enter the directory of go test
	}
	p := &proc{t: t, cmd: exec.Command(self, args...), lines: make(chan string, 100)}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role, "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	p.cmd.Dir = "/"
	if change != nil {
		change(p.cmd)
	}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		_ = out.Close()
	}()
	t.Cleanup(func() {
		_ = p.stdin.Close()
		timer := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		timer.Stop()
		for range p.lines {
		}
		<-read
	})
	return p
}

// line is the process's next line.
func (p *proc) line() string {
	p.t.Helper()
	select {
	case l, ok := <-p.lines:
		if !ok {
			p.t.Fatal("process ended without a word")
		}
		return l
	case <-time.After(patience):
		p.t.Fatal("process says nothing")
	}
	return ""
}

func (p *proc) expect(want string) {
	p.t.Helper()
	if got := p.line(); got != want {
		p.t.Fatalf("process says %q, want %q", got, want)
	}
}

func (p *proc) say(s string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, s+"\n"); err != nil {
		p.t.Fatal(err)
	}
}
