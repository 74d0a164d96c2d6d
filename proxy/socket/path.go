package socket

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// ErrPathTooLong is wrapped by the errors of [CheckPath], [Listen] and [Dial] for a path that the system cannot bind.
var ErrPathTooLong = errors.New("socket path too long")

// maxPath is what fits into sun_path with its closing NUL, in bytes.
func maxPath() int {
	switch runtime.GOOS {
	case "linux", "android", "windows":
		return 107 // sun_path is 108
	default:
		return 103 // macOS and the BSDs: 104
	}
}

// CheckPath reports whether path can name a Unix socket on this system: absolute, a file's name, without NUL, and not
// over the limit of sun_path (107 bytes on Linux and Windows, 103 on macOS and the BSDs).
//
// The kernel's own answer to a long path is a bare "invalid argument", on some systems a name that was cut short.
func CheckPath(path string) error {
	switch {
	case path == "":
		return errors.New("socket path is empty: give an absolute path")
	case strings.IndexByte(path, 0) >= 0:
		return fmt.Errorf("socket path %q: holds a NUL byte: give a plain absolute path", path)
	case !filepath.IsAbs(path):
		return fmt.Errorf("socket path %q: not absolute: begin it with the root directory", path)
	case isSeparator(path[len(path)-1]) || filepath.Base(path) == "." || filepath.Base(path) == "..":
		return fmt.Errorf("socket path %q: names a directory: add a file name", path)
	case len(path) > maxPath():
		return fmt.Errorf("%w: %q has %d bytes, this system takes %d: choose a shorter directory, for example with XDG_RUNTIME_DIR",
			ErrPathTooLong, path, len(path), maxPath())
	}
	return nil
}

func isSeparator(c byte) bool { return c == '/' || c == filepath.Separator }
