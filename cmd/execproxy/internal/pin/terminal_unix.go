//go:build unix

package pin

import (
	"context"
	"errors"
	"io"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const tty = "/dev/tty"

// ask writes a question to the controlling terminal and reads a line with echo off. However
// it ends, the terminal is as it was, and what was typed half is not left for the shell.
//
// term.ReadPassword would do, if a signal or ctx could end it.
func (s *Source) ask(ctx context.Context, question string) ([]byte, error) {
	fd, err := unix.Open(tty, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTTY) {
			err = errNoTTY
		}
		return nil, err
	}
	defer unix.Close(fd)

	// In the background this stops us, as it stops everybody, until the user has brought us
	// to the front: before the lock is ours, that others wait for.
	found, err := unix.IoctlGetTermios(fd, getTermios)
	if err != nil {
		return nil, err
	}
	if err := set(fd, setTermios, found); err != nil {
		return nil, err
	}
	// Two that ask on one terminal take each other's lines, and one turns echo on under the other.
	release, err := s.terminalGuard(ctx)
	if err != nil {
		return nil, err
	}
	defer release()

	// From here on signals may not end us before the terminal is as it was.
	caught, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	was, err := unix.IoctlGetTermios(fd, getTermios)
	if err != nil {
		return nil, err
	}
	hidden := *was
	hidden.Lflag &^= unix.ECHO | unix.ECHONL
	hidden.Lflag |= unix.ICANON | unix.ISIG
	hidden.Iflag |= unix.ICRNL
	for _, key := range suspendKeys {
		hidden.Cc[key] = disabled // stopped by Ctrl-Z we would leave echo off and keep the lock
	}
	// Flushed: what was typed before the question is no answer to it.
	if err := set(fd, setTermiosFlush, &hidden); err != nil {
		return nil, err
	}
	defer set(fd, setTermiosFlush, was)
	if err := put(fd, question); err != nil {
		return nil, err
	}
	value, err := readLine(caught, fd)
	_ = put(fd, "\n") // the user's own was not echoed
	if err != nil && caught.Err() != nil && ctx.Err() == nil {
		err = errSignal
	}
	return value, err
}

// readLine reads a line, without its end. A line that is too long is returned in part, longer
// than a PIN may be.
func readLine(ctx context.Context, fd int) ([]byte, error) {
	line := make([]byte, 0, 2*maxRead)
	buf := make([]byte, maxRead)
	defer Wipe(buf)
	for {
		if err := readable(ctx, fd); err != nil {
			Wipe(line)
			return nil, err
		}
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			Wipe(line)
			return nil, err
		}
		end := n == 0 // Ctrl-D
		if n > 0 && buf[n-1] == '\n' {
			n, end = n-1, true
		}
		line = append(line, buf[:min(n, cap(line)-len(line))]...) // never moved, so that it can be wiped
		if end {
			return line, nil
		}
	}
}

func set(fd int, how uint, t *unix.Termios) error {
	for {
		if err := unix.IoctlSetTermios(fd, how, t); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func put(fd int, text string) error {
	for b := []byte(text); len(b) > 0; {
		n, err := unix.Write(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrShortWrite
		default:
			b = b[n:]
		}
	}
	return nil
}

// terminalGuard waits for others who ask on the same terminal: its session names it.
func (s *Source) terminalGuard(ctx context.Context) (release func(), err error) {
	if s.store.dir == "" {
		return func() {}, nil
	}
	sid, err := unix.Getsid(0)
	if err != nil {
		return nil, err
	}
	g, err := s.acquire(ctx, filepath.Join(s.store.dir, "terminal-"+strconv.Itoa(sid)+".lock"))
	if err != nil {
		return nil, err
	}
	return g.end, nil
}
