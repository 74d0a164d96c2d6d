package pkcs11

import (
	"bytes"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// Defaults and limits of Options.
const (
	DefaultSessions = 4
	MinSessions     = 2
	MaxSessions     = 8
	DefaultTimeout  = 5 * time.Second

	// generateTimeout is how long a token may take for a new key, if that is longer than
	// Options.Timeout: smart cards look for RSA primes for a minute.
	generateTimeout = 2 * time.Minute
)

// Options say which key, and how to get at it.
type Options struct {
	// URI selects the module (module-path, module-name), the token (token, serial, model,
	// manufacturer, slot-id and what else RFC 7512 has) and the key (object, id).
	URI *URI

	// Module is the PKCS#11 library where the URI names none. Default: p11-kit's proxy
	// module, through which all the modules of the machine are seen.
	Module string

	// PIN unlocks the token. nil: no login. A PIN that a human typed just now has a method
	// Human() bool that says so.
	PIN signer.Secret

	// Chain is the certificate chain, leaf first. nil: the newest valid certificate of the
	// key on the token and the issuers that the token has. No certificate is no error.
	Chain []*x509.Certificate

	// Command is the child: a program that calls module.Serve. Environ is its environment,
	// all of it.
	Command []string
	Environ []string

	// Program is the file to execute where that is not Command[0], which is then only its
	// name: /proc/self/exe outlives an upgrade of the program.
	Program string

	// Stderr takes what the library prints. nil discards it.
	Stderr io.Writer

	// Sessions is how many signatures the token makes at once, 2 to 8. Default 4. Two more
	// sessions are open.
	Sessions int

	// Timeout is for one operation, reopening the token included. A module that takes
	// longer is killed. Default 5 s.
	Timeout time.Duration

	Logger *slog.Logger // nil discards
}

// settle returns o with its defaults.
func (o Options) settle() (*Options, error) {
	if o.URI == nil {
		return nil, errors.New("open PKCS#11 key: no URI names it")
	}
	if len(o.Command) == 0 {
		return nil, errors.New("open PKCS#11 key: no command runs its module")
	}
	if o.Sessions == 0 {
		o.Sessions = DefaultSessions
	}
	o.Sessions = min(max(o.Sessions, MinSessions), MaxSessions)
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &o, nil
}

// human tells whether somebody typed the PIN just now.
func (o *Options) human() bool {
	h, ok := o.PIN.(interface{ Human() bool })
	return ok && h.Human()
}

// chainKey returns the public key that the given chain is for, nil without one.
func (o *Options) chainKey() []byte {
	if len(o.Chain) == 0 {
		return nil
	}
	return bytes.Clone(o.Chain[0].RawSubjectPublicKeyInfo)
}
