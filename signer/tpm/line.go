package tpm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
)

const (
	headerSize  = 10   // tag, size, code
	maxResponse = 4096 // the largest that TPMs and their drivers know
)

// errCut says that a connection was given up while a command was under way.
var errCut = errors.New("the connection was cut")

// line is a connection to a TPM whose user need not wait for ever. It is for one goroutine.
type line struct {
	ctx  context.Context // of what is being done; the user sets it
	tpm  transport.TPMCloser
	in   chan []byte
	out  chan answer
	done chan struct{} // closed when tpm is
	cut  bool          // a command may still be under way: nothing can be sent
	once sync.Once
}

type answer struct {
	bytes []byte
	err   error
}

func newLine(t transport.TPMCloser) *line {
	// One answer fits: after a cut nobody takes it, and serve must end.
	l := &line{ctx: context.Background(), tpm: t, in: make(chan []byte), out: make(chan answer, 1), done: make(chan struct{})}
	go l.serve()
	return l
}

func (l *line) serve() {
	defer close(l.done)
	defer l.tpm.Close()
	for command := range l.in {
		b, err := l.tpm.Send(command)
		l.out <- answer{b, err}
	}
}

// Send is what go-tpm calls. It returns when l.ctx ends, whatever the TPM does, and asks again
// as long as the TPM asks for it.
func (l *line) Send(command []byte) ([]byte, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		b, err := l.send(command)
		if err != nil || !again(b) {
			return b, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			timer.Stop()
			return nil, context.Cause(l.ctx)
		}
	}
}

func (l *line) send(command []byte) ([]byte, error) {
	if l.cut {
		return nil, errCut
	}
	if l.ctx.Err() != nil {
		return nil, context.Cause(l.ctx)
	}
	l.in <- command // serve waits for it: nothing is under way
	select {
	case a := <-l.out:
		return a.bytes, a.err
	case <-l.ctx.Done():
	}
	l.cut = true
	if i, ok := l.tpm.(interface{ interrupt() }); ok {
		i.interrupt()
	}
	return nil, context.Cause(l.ctx)
}

// close gives the connection up, and waits up to patience for its end.
func (l *line) close(patience time.Duration) {
	l.once.Do(func() { close(l.in) })
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	}
}

// stuck tells whether a command is still under way on a line that was closed.
func (l *line) stuck() bool {
	if l == nil {
		return false
	}
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}
