package pin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// identity tells a file, and a state of it, from others without looking at what it holds.
type identity struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtimeNs"`
	Ctime int64  `json:"ctimeNs"`
}

// owned is who may do what with a file. Where ACLs decide that, it says nothing (known false).
type owned struct {
	known bool
	uid   int
	mode  fs.FileMode
}

// steadyReads is how often a file is read that is being written.
const steadyReads = 3

// readFile reads the PIN file, which may be a link: Kubernetes' secrets are.
func (s *Source) readFile(path string) (reading, error) {
	for range steadyReads {
		r, steady, err := s.readOnce(path)
		if err != nil {
			return reading{}, err
		}
		if steady {
			return r, nil
		}
		Wipe(r.value)
	}
	return reading{}, s.fail(ErrUnreadable, "it is being written", "try again")
}

// readOnce reads a file. It is not steady if it changed meanwhile: half a PIN is a wrong one.
func (s *Source) readOnce(path string) (r reading, steady bool, err error) {
	// A FIFO would keep a plain open waiting for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return r, false, s.unreadable(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return r, false, s.unreadable(path, err)
	}
	if !info.Mode().IsRegular() {
		return r, false, s.fail(ErrUnreadable, "it is not a regular file", "name a file that holds the PIN")
	}
	if err := s.checkPrivate(path, ownership(info)); err != nil {
		return r, false, err
	}
	before, err := identify(f)
	if err != nil {
		return r, false, s.unreadable(path, err)
	}
	var buf [maxRead]byte
	defer Wipe(buf[:])
	n, err := io.ReadFull(f, buf[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return r, false, s.unreadable(path, err)
	}
	if s.between != nil {
		s.between()
	}
	after, err := identify(f)
	if err != nil {
		return r, false, s.unreadable(path, err)
	}
	if before != after {
		return r, false, nil
	}
	r, err = s.read(buf[:n])
	r.file = &after
	return r, true, err
}

// read makes a reading of what was read; raw stays the caller's.
func (s *Source) read(raw []byte) (reading, error) {
	value, problem, cure := line(raw)
	if problem != "" {
		return reading{}, s.fail(ErrMalformed, problem, cure)
	}
	return reading{value: append([]byte(nil), value...)}, nil
}

func (s *Source) checkPrivate(path string, o owned) error {
	if !o.known {
		return nil
	}
	if me := os.Geteuid(); o.uid != me && o.uid != 0 {
		return s.fail(ErrUnsafe, "it belongs to uid "+strconv.Itoa(o.uid), "chown it to the user that runs this (uid "+strconv.Itoa(me)+")")
	}
	open := o.mode.Perm() & 0o077
	if s.spec.Kind == Credential {
		// systemd lets the service's user in by an ACL, whose mask stands where the group's bits do.
		open &^= 0o040
	}
	if open != 0 {
		return s.fail(ErrUnsafe, "others may get at it (mode "+fmt.Sprintf("%04o", o.mode.Perm())+")", "chmod 600 "+path)
	}
	return nil
}

func (s *Source) unreadable(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.fail(missingError{}, "", "check the path")
	case errors.Is(err, fs.ErrPermission):
		return s.fail(fmt.Errorf("%w: %w", ErrUnreadable, fs.ErrPermission), "", "chown it to the user that runs this, chmod 600 "+path)
	}
	return s.fail(fmt.Errorf("%w: %w", ErrUnreadable, plain(err)), "", "check the path")
}

// missingError is ErrMissing and fs.ErrNotExist, said once.
type missingError struct{}

func (missingError) Error() string   { return ErrMissing.Error() }
func (missingError) Unwrap() []error { return []error{ErrMissing, fs.ErrNotExist} }

// readCredential reads what systemd gave the service (systemd.exec(5), LoadCredential=).
func (s *Source) readCredential() (reading, error) {
	dir := s.getenv("CREDENTIALS_DIRECTORY")
	switch {
	case dir == "":
		return reading{}, s.fail(ErrMissing, "CREDENTIALS_DIRECTORY is not set",
			"run this in a systemd service that has LoadCredential="+s.spec.Place+":PATH, or name another source")
	case !filepath.IsAbs(dir):
		return reading{}, s.fail(ErrMissing, "CREDENTIALS_DIRECTORY is not an absolute path", "leave it to systemd to set it")
	}
	r, err := s.readFile(filepath.Join(dir, s.spec.Place))
	if errors.Is(err, ErrMissing) {
		return reading{}, s.fail(ErrMissing, "the service has no credential of that name", "give it LoadCredential="+s.spec.Place+":PATH")
	}
	// Every start of the service makes the file anew: its identity says nothing.
	r.file = nil
	return r, err
}
