//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package pin

import "golang.org/x/sys/unix"

const (
	getTermios      = unix.TIOCGETA
	setTermios      = unix.TIOCSETA
	setTermiosFlush = unix.TIOCSETAF
	disabled        = 0xff // _POSIX_VDISABLE
)

var suspendKeys = []int{unix.VSUSP, unix.VDSUSP}
