package pkcs11

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

const (
	// grace is how long a child may take to end once its standard input is closed.
	grace = time.Second
	// inherited is how long we wait for others that hold the child's standard error after
	// its end: a library may start processes of its own.
	inherited = time.Second
)

// host is a child process and the requests that are under way in it. When it is dead, it
// is dead for good; who needs another one starts it.
type host struct {
	module  string // for errors
	timeout time.Duration
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     io.ReadCloser
	done    chan struct{} // closed once the process is reaped

	writing sync.Mutex // one frame at a time; never held together with mu

	mu      sync.Mutex
	next    uint32
	pending map[uint32]*request
	cause   error // why it is dead
}

// request waits for its answer. answer holds one.
type request struct {
	answer  chan answer
	hung    *time.Timer
	release func() // may be nil
}

type answer struct {
	frame wire.Frame
	err   error
}

// startHost starts the child, and waits until it says that it is one.
func startHost(ctx context.Context, o *Options, module string) (*host, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := &host{module: module, timeout: o.Timeout, done: make(chan struct{}), pending: map[uint32]*request{}}
	h.cmd = exec.Command(o.Command[0], o.Command[1:]...)
	if o.Program != "" {
		h.cmd.Path, h.cmd.Err = o.Program, nil
	}
	h.cmd.Env = append([]string{}, o.Environ...) // never nil, which would mean ours
	h.cmd.Stderr = o.Stderr
	h.cmd.WaitDelay = inherited
	var err error
	if h.in, err = h.cmd.StdinPipe(); err == nil {
		h.out, err = h.cmd.StdoutPipe()
	}
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		return nil, &Error{What: "module " + module, Err: ErrCrashed, Detail: "its process cannot be started: " + err.Error(), lost: true}
	}
	hello := make(chan answer, 1)
	h.pending[0] = &request{answer: hello, hung: time.AfterFunc(h.timeout, h.hung)}
	go h.run()
	select {
	case a := <-hello:
		if a.err == nil && (a.frame.Kind != wire.KindHello || !bytes.Equal(a.frame.Body, wire.Magic)) {
			a.err = h.spoke("another version of this program runs there")
			h.kill(a.err)
		}
		if a.err != nil {
			<-h.done
			return nil, a.err
		}
		return h, nil
	case <-ctx.Done():
		h.kill(ctx.Err())
		<-h.done
		return nil, ctx.Err()
	}
}

func (h *host) hung() {
	h.kill(&Error{What: "module " + h.module, Err: ErrHung, Detail: fmt.Sprintf("not within %v", h.timeout),
		Cure: "look whether its token is there and reachable", lost: true})
}

func (h *host) spoke(detail string) error {
	return &Error{What: "module " + h.module, Err: ErrCrashed, Detail: detail, lost: true}
}

// run reads answers until there are no more, and reaps the child.
func (h *host) run() {
	defer close(h.done)
	r := bufio.NewReader(h.out)
	for {
		f, err := wire.Read(r)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				h.kill(h.spoke("its process wrote what is no answer: " + err.Error()))
			}
			break
		}
		h.deliver(f)
	}
	// Killing what is dead does no harm; what has only closed its output must not stay.
	_ = h.cmd.Process.Kill()
	_ = h.in.Close()
	err := h.cmd.Wait()
	detail := "its process ended"
	if state := h.cmd.ProcessState; state != nil && err != nil {
		detail = "its process ended: " + state.String()
	}
	h.kill(&Error{What: "module " + h.module, Err: ErrCrashed, Detail: detail, lost: true}) // a cause that was given before stays
	h.mu.Lock()
	pending := h.pending
	h.pending = nil
	h.mu.Unlock()
	for _, r := range pending {
		r.finish(answer{err: h.cause})
	}
}

func (h *host) deliver(f wire.Frame) {
	h.mu.Lock()
	r := h.pending[f.ID]
	delete(h.pending, f.ID)
	h.mu.Unlock()
	if r != nil {
		r.finish(answer{frame: f})
	}
}

func (r *request) finish(a answer) {
	r.hung.Stop()
	if r.release != nil {
		r.release()
	}
	r.answer <- a
}

// kill ends the child at once. The first cause is what requests under way fail with, and
// those to come.
func (h *host) kill(cause error) {
	h.mu.Lock()
	first := h.cause == nil
	if first {
		h.cause = cause
	}
	h.mu.Unlock()
	if first {
		_ = h.cmd.Process.Kill()
		_ = h.out.Close() // somebody who inherited it may keep it open
	}
}

// close ends the child, politely at first, and waits for its end. It may be called twice.
func (h *host) close(cause error) {
	h.mu.Lock()
	if h.cause == nil {
		h.cause = cause
	}
	h.mu.Unlock()
	_ = h.in.Close()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-h.done:
	case <-timer.C:
		_ = h.cmd.Process.Kill()
		_ = h.out.Close()
		<-h.done
	}
}

func (h *host) dead() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// call sends a request and waits for its answer. A module that does not answer within
// timeout is killed, also when nobody waits any more. release, where it is not nil, is
// called once the module is done with the request.
func (h *host) call(ctx context.Context, kind wire.Kind, m, reply wire.Message, timeout time.Duration, release func()) error {
	r := &request{answer: make(chan answer, 1), release: release}
	h.mu.Lock()
	if h.cause != nil || h.pending == nil {
		h.mu.Unlock()
		if release != nil {
			release()
		}
		return h.dead()
	}
	h.next++
	id := h.next
	r.hung = time.AfterFunc(timeout, h.hung)
	h.pending[id] = r
	h.mu.Unlock()

	f := wire.Frame{ID: id, Kind: kind}
	if m != nil {
		f.Body = wire.Encode(m)
	}
	h.writing.Lock()
	err := wire.Write(h.in, f)
	h.writing.Unlock()
	clear(f.Body) // it may have held a PIN
	if err != nil {
		h.kill(h.spoke("its process does not read: " + err.Error()))
	}
	select {
	case a := <-r.answer:
		return a.read(reply)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read decodes the answer into reply.
func (a answer) read(reply wire.Message) error {
	if a.err != nil {
		return a.err
	}
	switch a.frame.Kind {
	case wire.KindDone:
		if reply == nil {
			return nil
		}
		if err := wire.Decode(a.frame.Body, reply); err != nil {
			return fmt.Errorf("answer of the module's process: %w", err)
		}
		return nil
	case wire.KindFailed:
		var failed wire.Failed
		if err := wire.Decode(a.frame.Body, &failed); err != nil {
			return fmt.Errorf("answer of the module's process: %w", err)
		}
		return &failed
	}
	return fmt.Errorf("answer of the module's process: unknown kind %d", a.frame.Kind)
}
