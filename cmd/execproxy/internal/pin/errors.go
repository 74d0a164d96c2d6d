package pin

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"
)

// What an [Error] may be, for errors.Is.
var (
	// ErrRefused says that there is no other than one that was refused already.
	ErrRefused = errors.New("was refused")
	// ErrInterrupted says that the user gave up with Ctrl-C, or a signal ended the prompt.
	// A program then exits with 130.
	ErrInterrupted = errors.New("was interrupted")
	// ErrCancelled says that the user, or the askpass program, gave none.
	ErrCancelled = errors.New("was cancelled")
	// ErrNoTerminal says that nobody can be asked.
	ErrNoTerminal = errors.New("there is no terminal to ask on")
	// ErrMissing says that there is no such file, descriptor, credential or program.
	ErrMissing = errors.New("does not exist")
	// ErrUnreadable says that the operating system does not let us read.
	ErrUnreadable = errors.New("cannot be read")
	// ErrUnsafe says that others can read it, or put another there.
	ErrUnsafe = errors.New("is not private")
	// ErrMalformed says that what was read is no PIN.
	ErrMalformed = errors.New("holds no PIN")
	// ErrTimeout says that it did not come in time.
	ErrTimeout = errors.New("did not answer in time")
)

// Error says why there is no PIN. It never holds one.
type Error struct {
	What   string // what was asked for: "PIN of token execproxy (pkcs11)"
	Where  string // where it was to come from: "file /run/pin"; may be ""
	Err    error  // wraps one of the Err values above
	Detail string // may be ""
	Cure   string
}

func (e *Error) Error() string {
	parts := make([]string, 0, 5)
	if e.What != "" {
		parts = append(parts, e.What)
	}
	said := e.Err.Error()
	if e.Where != "" {
		said = e.Where + " " + said
	}
	parts = append(parts, said)
	if e.Detail != "" {
		parts = append(parts, e.Detail)
	}
	if e.Cure != "" {
		parts = append(parts, e.Cure)
	}
	return strings.Join(parts, ": ")
}

func (e *Error) Unwrap() error { return e.Err }

// refusedError is ErrRefused with its time.
type refusedError struct{ at time.Time }

func (e refusedError) Error() string {
	return ErrRefused.Error() + " at " + e.at.UTC().Format(time.RFC3339)
}
func (e refusedError) Unwrap() error { return ErrRefused }

// plain takes the path off an error, as the message has it already.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	var s *os.SyscallError
	if errors.As(err, &s) {
		return s.Err
	}
	return err
}
