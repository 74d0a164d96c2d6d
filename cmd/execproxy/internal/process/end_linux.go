package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// WatchEnd takes hold of a process that is not our child and returns a function that waits for its end.
func WatchEnd(pid int) (func(context.Context) error, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // before Linux 5.3, or filtered by a sandbox
		return func(ctx context.Context) error { return pollEnd(ctx, pid) }, nil
	case err != nil:
		return nil, fmt.Errorf("finding process %d: %w", pid, err)
	}
	return func(ctx context.Context) error {
		defer func() { _ = unix.Close(fd) }()
		for {
			// A pidfd becomes readable when the process ends, whether or not anybody has reaped it. The time limit
			// is for ctx alone.
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
			switch {
			case err != nil && !errors.Is(err, unix.EINTR):
				return fmt.Errorf("waiting for process %d: %w", pid, err)
			case n > 0:
				return nil
			case ctx.Err() != nil:
				return fmt.Errorf("process %d still runs: %w", pid, context.Cause(ctx))
			}
		}
	}, nil
}

// pollEnd looks every 2 ms, where there is nothing to wait on.
func pollEnd(ctx context.Context, pid int) error {
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil //nolint:nilerr // no such process: that is what is waited for
		}
		// The state follows the command's closing parenthesis; Z has ended and only waits to be reaped.
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) && (stat[i+2] == 'Z' || stat[i+2] == 'X') {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("process %d still runs: %w", pid, context.Cause(ctx))
		}
	}
}
