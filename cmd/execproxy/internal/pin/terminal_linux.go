package pin

import "golang.org/x/sys/unix"

const (
	getTermios      = unix.TCGETS
	setTermios      = unix.TCSETS
	setTermiosFlush = unix.TCSETSF
	disabled        = 0 // _POSIX_VDISABLE
)

var suspendKeys = []int{unix.VSUSP}
