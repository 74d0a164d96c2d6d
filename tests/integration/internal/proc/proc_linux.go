// Package proc starts the programs of the test cluster and sees to it that
// none of them outlives the tests.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Process is a running program with its log.
type Process struct {
	Name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// The kernel sends a child's parent-death signal when the thread that started
// it ends, so all children are started by one thread that never does.
var starter = sync.OnceValue(func() chan func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// StartCmd starts cmd so that it is killed when this process dies in any way.
func StartCmd(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	result := make(chan error, 1)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}

// Start runs a program in a process group of its own; what it prints is added
// to the file log.
func Start(name, log string, args ...string) (*Process, error) {
	return Launch(name, log, exec.Command(args[0], args[1:]...))
}

// Launch does the same with a command that needs more than arguments.
func Launch(name, log string, cmd *exec.Cmd) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := StartCmd(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &Process{Name: name, log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Await calls ready until it returns nil. It gives up, with the end of the
// log, when ctx ends or the program does.
func (p *Process) Await(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if last = ready(ctx); last == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("%s ended (%v) before it was ready; the end of %s:\n%s", p.Name, p.err, p.log, Tail(p.log, 25))
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time (%w); the end of %s:\n%s",
				p.Name, errors.Join(ctx.Err(), last), p.log, Tail(p.log, 25))
		}
	}
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the program's whole process group with SIGKILL and waits.
func (p *Process) Kill() {
	select {
	case <-p.done: // its process id may be somebody else's by now
	default:
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
		<-p.done
	}
}

// Tail returns the last lines of a file.
func Tail(path string, lines int) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	data = bytes.TrimRight(data, "\n")
	for i, at := 0, len(data); i < lines; i++ {
		if at = bytes.LastIndexByte(data[:at], '\n'); at < 0 {
			return data
		} else if i == lines-1 {
			return data[at+1:]
		}
	}
	return data
}
