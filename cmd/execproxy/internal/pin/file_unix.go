//go:build unix

package pin

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// nonblock keeps opening from waiting; a terminal must not become ours by being opened.
const (
	nonblock = syscall.O_NONBLOCK | syscall.O_NOCTTY
	noFollow = syscall.O_NOFOLLOW
)

func ownership(info fs.FileInfo) owned {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return owned{}
	}
	return owned{known: true, uid: int(st.Uid), mode: info.Mode()}
}

func identify(f *os.File) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, err
	}
	return identity{Dev: uint64(st.Dev), Inode: uint64(st.Ino), Size: int64(st.Size), Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano()}, nil
}
