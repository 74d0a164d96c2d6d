//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package process

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// WatchEnd takes hold of a process that is not our child and returns a function that waits for its end.
func WatchEnd(pid int) (func(context.Context) error, error) {
	kq, err := unix.Kqueue()
	if err != nil {
		return nil, fmt.Errorf("making a kqueue: %w", err)
	}
	var change unix.Kevent_t
	unix.SetKevent(&change, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change.Fflags = unix.NOTE_EXIT
	if _, err := unix.Kevent(kq, []unix.Kevent_t{change}, nil, nil); err != nil {
		_ = unix.Close(kq)
		return nil, fmt.Errorf("finding process %d: %w", pid, err)
	}
	return func(ctx context.Context) error {
		defer func() { _ = unix.Close(kq) }()
		limit := unix.NsecToTimespec(100e6) // for ctx alone
		for {
			n, err := unix.Kevent(kq, nil, make([]unix.Kevent_t, 1), &limit)
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
