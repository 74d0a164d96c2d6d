package certificate

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// What an [Error] may be, for errors.Is. ErrMissing is fs.ErrNotExist, too.
var (
	ErrMissing       = errors.New("no such file")
	ErrUnreadable    = errors.New("cannot be read")
	ErrUnwritable    = errors.New("cannot be written")
	ErrNotRegular    = errors.New("is not a regular file")
	ErrTooLarge      = errors.New("is too large for a PEM file")
	ErrMalformed     = errors.New("is not well-formed PEM")
	ErrNoCertificate = errors.New("holds no certificate")
	ErrMismatch      = errors.New("does not belong to the key")
	ErrExpired       = errors.New("has expired")
	ErrNotYetValid   = errors.New("is not valid yet")
)

// Error says what is wrong with a file.
type Error struct {
	What   string // "certificate", or "key" where that is what was looked for
	Path   string // "" for what is in memory or on a token
	Err    error  // wraps one of the Err values above, or one of the package that has another
	Detail string // may be ""
	Cure   string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.What)
	if e.Path != "" {
		b.WriteString(" file " + e.Path)
	}
	b.WriteString(": " + e.Err.Error())
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Cure != "" {
		b.WriteString(": " + e.Cure)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// HasCure reports that the text says already what mends it.
func (e *Error) HasCure() bool { return e.Cure != "" }

// missingError is ErrMissing and fs.ErrNotExist, said once.
type missingError struct{}

func (missingError) Error() string   { return ErrMissing.Error() }
func (missingError) Unwrap() []error { return []error{ErrMissing, fs.ErrNotExist} }

// plain takes the paths off an error, as the message has its own already.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	var l *os.LinkError
	if errors.As(err, &l) {
		return l.Err
	}
	return err
}
