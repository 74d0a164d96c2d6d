//go:build unix

package socket

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

func mkdir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	// A umask like 0777 would have left us out of our own directory.
	return os.Chmod(path, 0o700)
}

// owner is the file's uid and gid.
func owner(info fs.FileInfo) (uid, gid int) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), int(st.Gid)
	}
	return -1, -1
}

// ours reports whether a file belongs to this process's user, and whose it is otherwise.
func ours(info fs.FileInfo) (uid int, ok bool) {
	uid, _ = owner(info)
	return uid, uid == os.Geteuid()
}

func checkPrivate(path string, info fs.FileInfo) error {
	if uid, ok := ours(info); !ok {
		return &UnsafeError{path, fmt.Sprintf("belongs to uid %d, not to us (uid %d)", uid, os.Geteuid()), "choose a directory of your own"}
	}
	perm := info.Mode().Perm()
	if info.Mode()&os.ModeSticky != 0 {
		// Like /tmp: others count on it, and taking it from them is no cure.
		return &UnsafeError{path, fmt.Sprintf("has mode %#o and is for sharing, must be 0700", perm), "name a directory of your own; one that does not exist yet is made"}
	}
	if perm != 0o700 {
		return &UnsafeError{path, fmt.Sprintf("has mode %#o, must be 0700", perm), fmt.Sprintf("chmod 0700 %q", path)}
	}
	return nil
}

func checkLink(path string, info fs.FileInfo) error {
	if uid, _ := owner(info); uid != 0 && uid != os.Geteuid() {
		return &UnsafeError{path, fmt.Sprintf("is a symbolic link of uid %d", uid), "choose a path that no other user can redirect"}
	}
	return nil
}

func checkParent(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	uid, gid := owner(info)
	if uid != 0 && uid != os.Geteuid() {
		return &UnsafeError{path, fmt.Sprintf("belongs to uid %d, who could replace what is in it", uid), "choose a directory under parents of your own or of root"}
	}
	if info.Mode()&fs.ModeSticky != 0 {
		return nil // others can add names, but not replace ours
	}
	perm := info.Mode().Perm()
	if perm&0o002 != 0 || perm&0o020 != 0 && gid != uid {
		return &UnsafeError{path, fmt.Sprintf("has mode %#o: others could replace what is in it", perm), fmt.Sprintf("chmod go-w %q, or choose another directory", path)}
	}
	return nil
}
