package pin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/process"
)

const (
	// askpassPatience is how long a program may take: there is a user behind it.
	askpassPatience = 2 * time.Minute
	// askpassGrace is how long what a program left running may keep its output open.
	askpassGrace = time.Second
	// maxOutput is what a program may print, in bytes. Only the first line counts.
	maxOutput = 4 << 10
)

// askProgram runs the askpass program, as ssh(1) and git(1) do: the prompt is its argument, the
// first line that it prints is the answer. No shell is involved.
func (s *Source) askProgram(ctx context.Context) (reading, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.askpassPatience(), errAskpassTime)
	defer cancel()
	out := &output{full: cancel}
	defer Wipe(out.buf[:])
	cmd := exec.CommandContext(ctx, s.spec.Place, s.what+": ")
	cmd.Stdout = out // stdin and stderr are the null device: the client's are not ours
	cmd.WaitDelay = askpassGrace
	if !s.terminal { // a program that may ask there stays in our process group: others cannot read from it
		process.Apart(cmd)
	}
	// Our client's lock is one of them, which must come free when the client ends, not
	// when an agent does that the program leaves behind.
	keepDescriptors()
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case out.n == maxOutput:
		return reading{}, s.fail(ErrMalformed, "it prints 4096 bytes or more", "have it print the PIN alone")
	case context.Cause(ctx) == errAskpassTime:
		return reading{}, s.fail(fmt.Errorf("%w: %w", ErrTimeout, errAskpassTime), "", "try again, or "+ways)
	case ctx.Err() != nil:
		return reading{}, s.fail(stopped(ctx), "", "")
	case errors.As(err, &exit):
		return reading{}, s.fail(ErrCancelled, exit.ProcessState.String(), "run it again")
	case errors.Is(err, exec.ErrWaitDelay): // it ended well; something that it left behind did not
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return reading{}, s.fail(ErrMissing, "", "check the path")
	case errors.Is(err, fs.ErrPermission):
		return reading{}, s.fail(fmt.Errorf("%w: %w", ErrUnreadable, fs.ErrPermission), "", "chmod +x "+s.spec.Place)
	case err != nil:
		return reading{}, s.fail(fmt.Errorf("%w: %w", ErrUnreadable, notStarted(err)), "", "name a program that can be run")
	}
	first, _, _ := bytes.Cut(out.buf[:out.n], []byte("\n"))
	return s.read(bytes.TrimSuffix(first, []byte("\r")))
}

var errAskpassTime = errors.New("its time is over")

func (s *Source) askpassPatience() time.Duration {
	if s.patience > 0 {
		return s.patience
	}
	return askpassPatience
}

// stopped is the error for a context that ended while somebody was asked. Cancelled it was
// by Ctrl-C mostly, of which the caller may have heard first.
func stopped(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%w: %w", ErrInterrupted, ctx.Err())
	}
	return fmt.Errorf("%w: %w", ErrTimeout, ctx.Err())
}

// notStarted takes the name of the program off an error, as the message has it already.
func notStarted(err error) error {
	var e *exec.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	return plain(err)
}

// output takes what a program prints, in a place that can be wiped: io.Copy would take it
// through a buffer of its own.
type output struct {
	buf  [maxOutput]byte
	n    int
	full func() // ends the program, which may not mind that nobody reads on
}

func (o *output) ReadFrom(r io.Reader) (int64, error) {
	for {
		n, err := r.Read(o.buf[o.n:])
		o.n += n
		switch {
		case o.n == len(o.buf):
			o.full()
			return int64(o.n), nil
		case errors.Is(err, io.EOF):
			return int64(o.n), nil
		case err != nil:
			return int64(o.n), err
		}
	}
}

// Write is there for io.Copy to find ReadFrom beside it.
func (o *output) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
