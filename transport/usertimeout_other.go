//go:build !linux

package transport

import (
	"syscall"
	"time"
)

// userTimeout does nothing here: TCP keep-alive alone notices a dead peer.
func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
