//go:build !linux && !darwin && !windows

package socket

import (
	"errors"
	"fmt"
	"runtime"
)

// uidKnown is true although it is not: where nobody can be told apart, nobody is let in.
const uidKnown = true

func peerUID(int) (int, error) {
	return -1, fmt.Errorf("not known how to on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
