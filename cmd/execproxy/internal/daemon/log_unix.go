//go:build unix

package daemon

import (
	"fmt"
	"os"
	"syscall"
)

// whoseLog says why a file that was there before is no place for a log: in a
// directory of everybody, another user may have made it, or have given its name to
// another file of ours.
func whoseLog(f *os.File) (problem string) {
	fi, err := f.Stat()
	if err != nil {
		return "cannot be looked at: " + err.Error()
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !ok || fi.Mode()&os.ModeCharDevice != 0:
		return ""
	case !fi.Mode().IsRegular():
		return "is not a regular file"
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return fmt.Sprintf("belongs to uid %d, not to us (uid %d)", st.Uid, os.Geteuid())
	case st.Nlink > 1:
		return "is a hard link to a file that has another name, too"
	}
	return ""
}
