package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// span is a part of our address space.
type span struct{ from, to uintptr }

// letGoOfStart takes the pages of our own program out of our resident set. Most
// of them were for the start alone: every package's initialisation, and what the
// kernel maps around each page that is touched. Whichever is needed again is
// found in the page cache; what is not, the kernel may now forget.
func letGoOfStart() error {
	info, err := os.Stat("/proc/self/exe")
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("stat of /proc/self/exe has no inode")
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	for _, s := range untouched(string(smaps), stat.Ino) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise of %x-%x: %w", s.from, s.to, errno)
		}
	}
	return nil
}

// untouched finds in smaps (proc(5)) the mappings of the file that hold nothing
// but what is in the file. A read-only one may hold more: what the dynamic linker
// writes before it takes the right away is in no file.
func untouched(smaps string, inode uint64) (all []span) {
	var s span
	ours := false
	for line := range strings.Lines(smaps) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"): // 00402000-00c86000 r-xp 00002000 fe:00 1234 /path
			from, to, _ := strings.Cut(fields[0], "-")
			a, err := strconv.ParseUint(from, 16, 64)
			b, err2 := strconv.ParseUint(to, 16, 64)
			s = span{uintptr(a), uintptr(b)}
			ours = err == nil && err2 == nil && a < b && (fields[1] == "r-xp" || fields[1] == "r--p") && fields[4] == strconv.FormatUint(inode, 10)
		case ours && len(fields) == 3 && fields[0] == "Anonymous:":
			if fields[1] == "0" {
				all = append(all, s)
			}
			ours = false
		}
	}
	return all
}
