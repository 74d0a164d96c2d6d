package socket

import (
	"io/fs"
	"syscall"
)

func controlMode(_, _ string, _ syscall.RawConn) error { return nil }

// wantMode is always true: modes mean nothing here, the directory's access control list does.
func wantMode(fs.FileInfo) bool { return true }
