package cluster

import (
	"net"
	"testing"
)

// TestFreePortOfOthers: what another test process has been given is not free, though
// nobody listens there yet.
func TestFreePortOfOthers(t *testing.T) {
	first, err := FreePort(0)
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := net.Listen("unix", reservation(first+1)); err == nil { // else it really is another's
		defer func() { _ = theirs.Close() }()
	}
	second, err := FreePort(0)
	if err != nil || second <= first+1 {
		t.Errorf("after %d: %d, %v", first, second, err)
	}
	if l, err := net.Listen("unix", reservation(second)); err == nil {
		_ = l.Close()
		t.Errorf("others are given %d, too", second)
	}
}
