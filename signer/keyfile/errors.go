package keyfile

import (
	"errors"
	"io/fs"

	"github.com/execproxy/execproxy/signer/certificate"
)

// Error says what is wrong with a file.
type Error = certificate.Error

// What an [Error] may be, for errors.Is. ErrMissing is fs.ErrNotExist, too.
var (
	ErrMissing       = certificate.ErrMissing
	ErrUnreadable    = certificate.ErrUnreadable
	ErrUnwritable    = certificate.ErrUnwritable
	ErrNotRegular    = certificate.ErrNotRegular
	ErrTooLarge      = certificate.ErrTooLarge
	ErrMalformed     = certificate.ErrMalformed
	ErrNoCertificate = certificate.ErrNoCertificate
	ErrMismatch      = certificate.ErrMismatch
	ErrExpired       = certificate.ErrExpired
	ErrNotYetValid   = certificate.ErrNotYetValid

	ErrNoKey       = errors.New("holds no private key")
	ErrManyKeys    = errors.New("holds more than one private key")
	ErrEncrypted   = errors.New("holds an encrypted private key")
	ErrUnsupported = errors.New("holds a private key of an unsupported kind")
	ErrExists      = error(existsError{}) // what Create finds; it is fs.ErrExist, too
)

var (
	// ErrClosed is what Sign returns after Close.
	ErrClosed = errors.New("key is closed")
	// ErrNoFiles is what Watch returns for a Key that was not loaded with its chain from files.
	ErrNoFiles = errors.New("key was not loaded from files")
)

type existsError struct{}

func (existsError) Error() string { return "exists already" }
func (existsError) Unwrap() error { return fs.ErrExist }
