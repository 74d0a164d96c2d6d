package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// A PluginError says that the plugin gave no document that can be used.
type PluginError struct {
	Command string
	Err     error  // *exec.ExitError, context.DeadlineExceeded, what is wrong with the document
	Stderr  string // the last line the plugin wrote there, or ""
}

func (e *PluginError) Error() string {
	msg := fmt.Sprintf("plugin %q: %v", e.Command, e.Err)
	if e.Stderr != "" {
		msg += ": " + e.Stderr
	}
	return msg
}

func (e *PluginError) Unwrap() error { return e.Err }

// ending is how long a plugin that has failed may take to say why and to exit.
const ending = time.Second

// A child is a plugin process.
type child struct {
	cmd            *exec.Cmd
	stdout, stderr *os.File
	tail           tail
	spoken, told   chan struct{} // closed when stdout and stderr have ended
	done           chan struct{} // closed when the process has ended and err is set
	err            error
}

// run executes the plugin and returns when its document is there, whether or not the
// process goes on. On an error the process is gone.
func (c *Client) run() (*clientauthentication.ExecCredential, *child, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.o.Timeout)
	defer cancel()
	p, err := c.start()
	if err != nil {
		return nil, nil, &PluginError{Command: c.o.Command, Err: err}
	}
	type answer struct {
		cred *clientauthentication.ExecCredential
		err  error
	}
	answered := make(chan answer, 1)
	c.tasks.Go(func() {
		defer close(p.spoken)
		defer p.stdout.Close()
		cred, err := clientauthentication.DecodeAnswer(p.stdout)
		answered <- answer{cred, err}
		// Whatever else comes must neither block nor kill a plugin that runs on.
		_, _ = io.Copy(io.Discard, p.stdout)
	})
	var a answer
	select {
	case a = <-answered:
		if a.err == nil {
			return a.cred, p, nil
		}
	case <-ctx.Done():
		a.err = fmt.Errorf("no answer within %v: %w", c.o.Timeout, ctx.Err())
		if c.ctx.Err() != nil {
			a.err = ErrClosed
		}
		return nil, nil, p.fail(a.err)
	}
	// A plugin that fails ends by itself, and its status says more.
	select {
	case <-p.done:
	case <-time.After(ending):
	case <-c.ctx.Done():
	}
	if !p.running() && p.err != nil {
		a.err = p.err
	}
	return nil, nil, p.fail(a.err)
}

// start starts the plugin. Its stdin is empty: it is told not to be interactive.
func (c *Client) start() (_ *child, err error) {
	info, err := c.info(c.lock.Path())
	if err != nil {
		return nil, err
	}
	p := &child{cmd: exec.Command(c.o.Command, c.o.Args...), done: make(chan struct{})}
	p.spoken, p.told = make(chan struct{}), make(chan struct{})
	p.cmd.Dir = c.o.Dir
	p.cmd.Env = c.o.Env
	if p.cmd.Env == nil {
		p.cmd.Env = p.cmd.Environ()
	}
	// Of several values os/exec passes on the last.
	p.cmd.Env = slices.Concat(p.cmd.Env, c.o.ExtraEnv, []string{clientauthentication.InfoVariable + "=" + string(info)})
	ownGroup(p.cmd)
	// Pipes of our own, because those of os/exec end with the plugin or hold up its
	// end, and the proxy may write there before and after.
	var in [2]*os.File
	defer func() {
		for _, f := range in {
			_ = f.Close() // nil is fine
		}
		if err != nil {
			p.closePipes()
		}
	}()
	if p.stdout, in[0], err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stderr, in[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = in[0], in[1]
	if err := p.cmd.Start(); err != nil {
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("%w: install it or give its full path", err)
		case errors.Is(err, syscall.E2BIG):
			return nil, fmt.Errorf("%w: the cluster's CA bundle or extension is too large for an environment variable", err)
		}
		return nil, err
	}
	c.mu.Lock()
	c.children[p] = struct{}{}
	c.mu.Unlock()
	c.tasks.Go(func() {
		defer p.stderr.Close()
		defer close(p.told)
		p.tail.copy(c.o.Stderr, p.stderr)
	})
	c.tasks.Go(func() {
		p.err = p.cmd.Wait()
		close(p.done)
		// Its pipes may be held by a process that it left behind.
		if !p.silent(c.ctx.Done()) {
			late, cancel := context.WithTimeout(context.Background(), ending/4)
			p.silent(late.Done())
			cancel()
			p.closePipes()
		}
		c.mu.Lock()
		delete(c.children, p)
		c.mu.Unlock()
	})
	return p, nil
}

// running reports whether the process has not ended.
func (p *child) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process, and those it started that are of its group.
func (p *child) kill() {
	if p.running() {
		killGroup(p.cmd)
	}
}

func (p *child) closePipes() {
	_ = p.stdout.Close()
	_ = p.stderr.Close()
}

// silent waits until nobody can write to the pipes any more, or for until.
func (p *child) silent(until <-chan struct{}) bool {
	for _, end := range []chan struct{}{p.spoken, p.told} {
		select {
		case <-end:
		case <-until:
			return false
		}
	}
	return true
}

// fail ends the process and adds to err what it said.
func (p *child) fail(err error) error {
	p.kill()
	<-p.done
	select {
	case <-p.told:
	case <-time.After(ending / 4): // somebody else has the pipe
	}
	p.closePipes()
	return &PluginError{Command: p.cmd.Path, Err: err, Stderr: p.tail.line()}
}

// A sharedWriter is for the plugins that run at the same time.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// A tail is the end of what was written.
type tail struct {
	mu   sync.Mutex
	data []byte
}

const (
	tailSize    = 4 << 10
	longestLine = 500 // bytes
)

// copy passes on what comes from r to w, if w is not nil, and keeps the end of it.
func (t *tail) copy(w io.Writer, r io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		t.mu.Lock()
		t.data = append(t.data, buf[:n]...)
		if over := len(t.data) - tailSize; over > 0 {
			t.data = append(t.data[:0], t.data[over:]...)
		}
		t.mu.Unlock()
		if w != nil && n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				w = nil // the plugin must not be held up by who listens
			}
		}
		if err != nil {
			return
		}
	}
}

// line returns the last line that is not blank, fit to be part of another.
func (t *tail) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(t.data), []byte("\n"))
	line := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(string(bytes.TrimSpace(lines[len(lines)-1])), ""))
	if len(line) > longestLine {
		line = strings.ToValidUTF8(line[:longestLine], "") + "…"
	}
	return line
}
