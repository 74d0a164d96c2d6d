//go:build !linux

package daemon

import "context"

// listenerPID is what the proxy says: there is one name for a process here.
func listenerPID(_ context.Context, _ string, said int) int { return said }
