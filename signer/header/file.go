package header

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// settled is how old a file must be before its times tell about changes: a file that is
// written twice within a tick of its file system's clock may look the same.
const settled = 2 * time.Second

// file is a value in a file.
type file struct {
	name, path string

	mu    sync.Mutex
	info  fs.FileInfo // of what was read; nil: read again
	value string
}

// FileError says that a file has no usable value. It never holds the file's content.
type FileError struct {
	Name string // the field
	Path string
	Err  error
}

func (e *FileError) Error() string {
	return fmt.Sprintf("header %s: file %s: %v: write the value into it, on one line", e.Name, e.Path, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// StatusCode is the HTTP status for the client: 503, as the file may come back.
func (e *FileError) StatusCode() int { return http.StatusServiceUnavailable }

// read returns the value that the file has now.
func (f *file) read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return "", f.fail(err)
	}
	if f.info != nil && os.SameFile(info, f.info) && info.Size() == f.info.Size() && info.ModTime().Equal(f.info.ModTime()) {
		return f.value, nil
	}
	if !info.Mode().IsRegular() { // reading a FIFO would wait for a writer
		return "", f.fail(errors.New("not a regular file"))
	}
	value, info, err := load(f.path)
	if err != nil {
		return "", f.fail(err)
	}
	f.value, f.info = value, info
	if age := time.Since(info.ModTime()); age < settled {
		f.info = nil
	}
	return value, nil
}

func (f *file) fail(err error) error {
	f.info, f.value = nil, ""
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err // the path is in the message already
	}
	return &FileError{Name: f.name, Path: f.path, Err: err}
}

// load reads a value, and tells which file it came from: another one may have been put at
// the path since it was looked at.
func load(path string) (string, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() {
		return "", nil, errors.New("not a regular file")
	}
	content, err := io.ReadAll(io.LimitReader(f, maxValue+3)) // a line end, and one byte too many
	if err != nil {
		return "", nil, err
	}
	value, err := clean(strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r"))
	return value, info, err
}
