//go:build !windows

package certificate

import (
	"os"
	"syscall"
	"testing"
)

func ownerOf(t *testing.T, path string) (uid, gid int) {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	s := info.Sys().(*syscall.Stat_t)
	return int(s.Uid), int(s.Gid)
}
