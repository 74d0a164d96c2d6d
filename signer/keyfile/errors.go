package keyfile

import (
	"errors"
	"strings"
)

// What an [Error] may be, for errors.Is. ErrMissing is fs.ErrNotExist, too.
var (
	ErrMissing       = errors.New("no such file")
	ErrUnreadable    = errors.New("cannot be read")
	ErrNotRegular    = errors.New("is not a regular file")
	ErrTooLarge      = errors.New("is too large for a PEM file")
	ErrMalformed     = errors.New("is not well-formed PEM")
	ErrNoKey         = errors.New("holds no private key")
	ErrManyKeys      = errors.New("holds more than one private key")
	ErrEncrypted     = errors.New("holds an encrypted private key")
	ErrUnsupported   = errors.New("holds a private key of an unsupported kind")
	ErrNoCertificate = errors.New("holds no certificate")
	ErrMismatch      = errors.New("does not belong to the key")
	ErrExpired       = errors.New("has expired")
	ErrNotYetValid   = errors.New("is not valid yet")
)

var (
	// ErrClosed is what Sign returns after Close.
	ErrClosed = errors.New("key is closed")
	// ErrNoFiles is what Watch returns for a Key that was not loaded from files.
	ErrNoFiles = errors.New("key was not loaded from files")
)

// Error says what is wrong with a file.
type Error struct {
	What   string // "key" or "certificate"
	Path   string // "" for what was given to Parse
	Err    error  // wraps one of the Err values above
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

// causeError is one of the Err values with what the operating system said.
type causeError struct{ err, cause error }

func (e causeError) Error() string   { return e.err.Error() + ": " + e.cause.Error() }
func (e causeError) Unwrap() []error { return []error{e.err, e.cause} }
