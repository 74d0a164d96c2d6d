package pkcs11

import (
	"errors"
	"strings"
)

// What an [Error] may be, for errors.Is.
var (
	ErrURI         = errors.New("is malformed")
	ErrModule      = errors.New("does not load")
	ErrNoToken     = errors.New("there is no such token")
	ErrManyTokens  = errors.New("there is more than one such token")
	ErrNoKey       = errors.New("there is no such key")
	ErrManyKeys    = errors.New("there is more than one such key")
	ErrPIN         = errors.New("the PIN was refused")
	ErrPINLocked   = errors.New("the PIN is locked")
	ErrPINLastTry  = errors.New("one try of the PIN is left")
	ErrPINNeeded   = errors.New("a PIN is needed")
	ErrCrashed     = errors.New("the module crashed")
	ErrHung        = errors.New("the module does not answer")
	ErrLost        = errors.New("the token does not work")
	ErrBusy        = errors.New("all sessions are busy")
	ErrNoCGO       = errors.New("this build has no PKCS#11")
	ErrExists      = errors.New("the key exists already")
	ErrUnsupported = errors.New("is not supported")
	ErrMismatch    = errors.New("the certificate does not belong to the key")

	// ErrClosed is what Sign returns after Close.
	ErrClosed = errors.New("key is closed")
)

// Error says what is wrong with a module, a token or a key.
type Error struct {
	What   string // "module /usr/lib/…", "token execproxy", "key pkcs11:…"
	Err    error  // one of the Err values above
	Detail string // may be ""
	Cure   string // may be ""

	lost    bool // a new process may mend it
	refused bool // about a PIN: no other try
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.What + ": " + e.Err.Error())
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Cure != "" {
		b.WriteString(": " + e.Cure)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// HasCure tells whoever wraps the error that nothing needs to be added.
func (e *Error) HasCure() bool { return e.Cure != "" }

// mendable tells whether another try with a new process is worth it.
func mendable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.lost
}
