package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// UnsafeError says why a directory, socket or lock file is not private to this user.
type UnsafeError struct {
	Path    string
	Problem string
	Cure    string
}

func (e *UnsafeError) Error() string { return fmt.Sprintf("%q %s: %s", e.Path, e.Problem, e.Cure) }

// Dir is a directory that belongs to this user alone.
type Dir struct{ path string }

// Path is the directory's path, cleaned, as it was given to [OpenDir].
func (d *Dir) Path() string { return d.path }

// File is the path of a file in the directory.
func (d *Dir) File(name string) string { return filepath.Join(d.path, name) }

// maxLinks bounds the symbolic links in one path, as the kernel does.
const maxLinks = 40

// OpenDir verifies that the directory at path is private, and creates it, and the parents that are missing, with mode
// 0700.
//
// The directory itself must be of our own uid, must not be open to anybody else, and must not be a symbolic link. Its
// parents decide who can put another directory in its place, so each must belong to us or to root and must not be
// writable by others, unless it is sticky like /tmp. A parent that is writable by a group is accepted if the group is
// the private group of the parent's owner, that is, bears the same number. A symbolic link among the parents is
// followed if we or root made it, and what it leads to is held to the same.
//
// On Windows owner and access control list of the directory are verified: nobody but this user, SYSTEM and the
// administrators may be granted anything.
//
// A refusal is an *[UnsafeError].
func OpenDir(path string) (*Dir, error) {
	if path == "" || strings.IndexByte(path, 0) >= 0 || !filepath.IsAbs(path) {
		return nil, fmt.Errorf("socket directory %q: not absolute: begin it with the root directory", path)
	}
	path = filepath.Clean(path)
	if err := walk(path); err != nil {
		return nil, fmt.Errorf("opening socket directory: %w", err)
	}
	return &Dir{path: path}, nil
}

// walk goes down from the root, so that every name is looked at only after it is known who can change it.
func walk(path string) error {
	volume := filepath.VolumeName(path)
	at := volume + string(filepath.Separator)
	todo := split(path[len(volume):])
	if len(todo) == 0 {
		return &UnsafeError{path, "is the root directory", "choose a directory of your own"}
	}
	if err := checkParent(at); err != nil {
		return err
	}
	for links := 0; len(todo) > 0; {
		next := filepath.Join(at, todo[0])
		last := len(todo) == 1
		info, err := os.Lstat(next)
		if errors.Is(err, fs.ErrNotExist) {
			if err := mkdir(next); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			info, err = os.Lstat(next)
		}
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0 && last:
			return &UnsafeError{next, "is a symbolic link", "replace it by a directory of mode 0700"}
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return &UnsafeError{path, "has too many symbolic links", "choose another directory"}
			}
			if err := checkLink(next, info); err != nil {
				return err
			}
			target, err := os.Readlink(next)
			if err != nil {
				return err
			}
			if filepath.IsAbs(target) {
				volume := filepath.VolumeName(target)
				at, target = volume+string(filepath.Separator), target[len(volume):]
			}
			todo = append(split(target), todo[1:]...)
		case !info.IsDir():
			return &UnsafeError{next, "is not a directory", "remove it or choose another directory"}
		case last:
			return checkPrivate(next, info)
		default:
			if err := checkParent(next); err != nil {
				return err
			}
			at, todo = next, todo[1:]
		}
	}
	// Links have led to the root directory.
	return &UnsafeError{path, "is not private", "choose a directory of your own"}
}

// split keeps "..": behind a symbolic link it does not cancel the name before it, and filepath.Join takes it at a
// moment when everything before it is a real directory.
func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == filepath.Separator })
}
