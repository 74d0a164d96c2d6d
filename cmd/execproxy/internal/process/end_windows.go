package process

import (
	"context"
	"fmt"

	"golang.org/x/sys/windows"
)

// WatchEnd takes hold of a process that is not our child and returns a function that waits for its end.
func WatchEnd(pid int) (func(context.Context) error, error) {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return nil, fmt.Errorf("finding process %d: %w", pid, err)
	}
	return func(ctx context.Context) error {
		defer func() { _ = windows.CloseHandle(h) }()
		for {
			event, err := windows.WaitForSingleObject(h, 100) // milliseconds; the limit is for ctx alone
			switch {
			case event == windows.WAIT_OBJECT_0:
				return nil
			case err != nil:
				return fmt.Errorf("waiting for process %d: %w", pid, err)
			case ctx.Err() != nil:
				return fmt.Errorf("process %d still runs: %w", pid, context.Cause(ctx))
			}
		}
	}, nil
}
