package keyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

const maxFile = 1 << 20 // bytes

// read reads a file, and tells who else may do so.
func read(what, path string) (s source, warning string, err error) {
	s.path = path
	fail := func(err error, cure string) (source, string, error) {
		return source{}, "", &Error{What: what, Path: path, Err: err, Cure: cure}
	}
	// A FIFO would keep a plain open waiting for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err == nil {
		defer f.Close()
	}
	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail(missingError{}, "check the path")
	case errors.Is(err, fs.ErrPermission):
		return fail(causeError{ErrUnreadable, fs.ErrPermission}, "make it readable for the user that runs this: chown it to them, chmod 600")
	case err != nil:
		return fail(causeError{ErrUnreadable, plain(err)}, "")
	case !info.Mode().IsRegular():
		return fail(ErrNotRegular, "name a PEM file")
	}
	s.pem, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fail(causeError{ErrUnreadable, plain(err)}, "")
	}
	if len(s.pem) > maxFile {
		return fail(ErrTooLarge, "name a PEM file")
	}
	if mode := info.Mode().Perm(); what == "key" && private && mode&0o077 != 0 {
		warning = fmt.Sprintf("key file %s: readable by others (mode %04o): chmod 600 %s", path, mode, path)
	}
	return s, warning, nil
}

// missingError is ErrMissing and fs.ErrNotExist, said once.
type missingError struct{}

func (missingError) Error() string   { return ErrMissing.Error() }
func (missingError) Unwrap() []error { return []error{ErrMissing, fs.ErrNotExist} }

// plain takes the path off an error, as the message has it already.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
