package certificate

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// MaxFile is how large a PEM file may be, in bytes.
const MaxFile = 1 << 20

// ReadFile reads a regular file of at most [MaxFile], which holds what: "certificate" or
// "key". It waits for no writer, and fails with an *[Error].
func ReadFile(what, path string) ([]byte, fs.FileInfo, error) {
	fail := func(err error, cure string) ([]byte, fs.FileInfo, error) {
		return nil, nil, &Error{What: what, Path: path, Err: err, Cure: cure}
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
		return fail(fmt.Errorf("%w: %w", ErrUnreadable, fs.ErrPermission), "make it readable for the user that runs this: chown it to them, chmod 600")
	case err != nil:
		return fail(fmt.Errorf("%w: %w", ErrUnreadable, plain(err)), "")
	case !info.Mode().IsRegular():
		return fail(ErrNotRegular, "name a PEM file")
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrUnreadable, plain(err)), "")
	}
	if len(text) > MaxFile {
		return fail(ErrTooLarge, "name a PEM file")
	}
	return text, info, nil
}

// Blocks splits a PEM text, which holds what and came from path. encoding/pem skips what it
// cannot read, which would make a shorter chain of a file that is only half written: here
// that is an *[Error].
func Blocks(what, path string, text []byte) ([]*pem.Block, error) {
	var all []*pem.Block
	for rest := text; ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		all = append(all, b)
	}
	if begun := bytes.Count(text, []byte("-----BEGIN ")); len(all) < begun {
		return nil, &Error{What: what, Path: path, Err: ErrMalformed,
			Detail: fmt.Sprintf("%d of its %d blocks are broken or cut short", begun-len(all), begun), Cure: "write it again"}
	}
	if len(all) == 0 && len(text) > 0 && text[0] == 0x30 {
		return nil, &Error{What: what, Path: path, Err: ErrMalformed,
			Detail: "it looks like DER", Cure: "convert it with `openssl pkey -inform DER` or `openssl x509 -inform DER`"}
	}
	return all, nil
}
