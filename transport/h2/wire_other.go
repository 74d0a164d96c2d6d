//go:build !unix

package h2

import "errors"

// canPoll: a goroutine reads and another writes, blocking, as everywhere on this system.
const canPoll = false

func readFD(uintptr, []byte) (int, error)  { return 0, errors.ErrUnsupported }
func writeFD(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
