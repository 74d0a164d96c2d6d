//go:build unix

package pin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// passed tells whether a descriptor came from the parent process: it outlived an exec, so it
// has no close-on-exec flag, which everything that Go opens has. Go's own must not be read.
func passed(place string) bool {
	fd, err := strconv.Atoi(place)
	if err != nil {
		return false
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// readDescriptor reads a descriptor to its end, and closes it.
func (s *Source) readDescriptor(ctx context.Context) (reading, error) {
	fd, err := strconv.Atoi(s.spec.Place)
	if err != nil || !s.passed {
		return reading{}, s.fail(ErrMissing, "it was not passed on to this process", "start it with "+s.spec.Place+"<FILE, or "+ways)
	}
	// From here on it is no more, whatever comes of it; nor does a child get it.
	s.passed = false
	if fd > 2 {
		unix.CloseOnExec(fd)
		defer unix.Close(fd)
	} // standard input stays open: what is opened next would become it
	var buf [maxRead]byte
	defer Wipe(buf[:])
	n := 0
	for n < len(buf) {
		if err := readable(ctx, fd); err != nil {
			return reading{}, s.fail(descriptorError(ctx, err), "", "check what it was opened on")
		}
		got, err := unix.Read(fd, buf[n:])
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return reading{}, s.fail(descriptorError(ctx, err), "", "check what it was opened on")
		}
		if n += got; got == 0 {
			break
		}
	}
	return s.read(buf[:n])
}

func descriptorError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return stopped(ctx)
	}
	return fmt.Errorf("%w: %w", ErrUnreadable, plain(err))
}

// readable waits until fd can be read, or ctx ends. It is select(2), because on macOS poll(2)
// and kqueue(2) know nothing of /dev/tty, and because a read that blocks cannot be ended.
func readable(ctx context.Context, fd int) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_, _ = w.Write([]byte{0})
	})
	defer func() {
		if !stop() {
			<-done // before the pipe is closed and its number becomes another's
		}
	}()
	wake := int(r.Fd())
	if max(fd, wake) >= unix.FD_SETSIZE {
		return errors.New("too many open files for select(2)")
	}
	for {
		var set unix.FdSet
		set.Set(fd)
		set.Set(wake)
		_, err := unix.Select(max(fd, wake)+1, &set, nil, nil, nil)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("select", err)
		case set.IsSet(fd):
			return nil
		}
	}
}
