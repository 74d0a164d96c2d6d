package tpm

import (
	"context"
	"errors"
	"strings"
)

// What an [Error] may be, for errors.Is.
var (
	ErrNoDevice    = errors.New("no TPM")
	ErrNoKey       = errors.New("no key there")
	ErrPassword    = errors.New("wrong password")
	ErrLockout     = errors.New("the TPM is locked out")
	ErrOtherTPM    = errors.New("made by another TPM")
	ErrBusy        = errors.New("too busy")
	ErrTimeout     = errors.New("no answer in time")
	ErrExists      = errors.New("there is something already")
	ErrClosed      = errors.New("key is closed")
	ErrUnsupported = errors.New("not supported")
	ErrMalformed   = errors.New("not a well-formed TSS2 PRIVATE KEY file")
	ErrMismatch    = errors.New("certificate does not belong to the key")
	ErrLost        = errors.New("connection lost")
	ErrUnwritable  = errors.New("cannot be written")
)

// Error says what is wrong with a key in a TPM, or with the TPM.
type Error struct {
	Where  string // "tpm:handle=0x81000100", "tpm:/path/key.pem", "TPM /dev/tpmrm0"
	Err    error  // wraps one of the Err values above
	Detail string // may be ""
	Cure   string // may be ""
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Where)
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

// HasCure tells whoever wraps the error that nothing needs to be added.
func (e *Error) HasCure() bool { return e.Cure != "" }

// timeoutError is ErrTimeout and context.DeadlineExceeded, said once.
type timeoutError struct{}

func (timeoutError) Error() string   { return ErrTimeout.Error() }
func (timeoutError) Unwrap() []error { return []error{ErrTimeout, context.DeadlineExceeded} }
