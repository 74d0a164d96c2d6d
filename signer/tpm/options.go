package tpm

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/execproxy/execproxy/signer"
)

// Options tell which key, and how to get at it.
type Options struct {
	// Exactly one of them.
	Handle uint32 // persistent, 0x81000000 to 0x81ffffff
	File   string // with a TSS2 PRIVATE KEY

	// Device is /dev/tpmrm0 or its like, or the Unix socket of a software TPM. "" is
	// /dev/tpmrm0, else /dev/tpm0; on Windows the system's TPM.
	Device string

	// Password unlocks the key; nil is the empty one. It is asked for when the key is opened,
	// and again when the TPM was restarted.
	Password signer.Secret

	// Chain is what CertificateChain returns, leaf first. It may be empty.
	Chain []*x509.Certificate

	Timeout time.Duration // of one signature, opening again included; 0 is 10 s
	Queue   int           // signatures that may wait; 0 is 64

	Logger *slog.Logger // nil is silent

	dial func(device string) (transport.TPMCloser, error) // nil is the real one
}

const (
	defaultTimeout = 10 * time.Second
	defaultQueue   = 64
	// Opening and creating may need an RSA storage key, which some TPMs compute for a minute.
	openTimeouts   = 6
	createTimeouts = 30
)

// The handles that the owner of a TPM may use (TCG Registry of Reserved TPM 2.0 Handles).
const (
	firstPersistent = tpm2.TPMHandle(0x81000000)
	firstPlatform   = tpm2.TPMHandle(0x81800000)
	lastPersistent  = tpm2.TPMHandle(0x81ffffff)
)

// place is where a key lies.
type place struct {
	handle tpm2.TPMHandle
	file   string
}

// String is how --key names it.
func (p place) String() string {
	switch {
	case p.file != "":
		return "tpm:" + p.file
	case p.handle != 0:
		return fmt.Sprintf("tpm:handle=0x%08x", uint32(p.handle))
	}
	return "tpm:"
}

func (p place) fail(err error, detail, cure string) error {
	return &Error{Where: p.String(), Err: err, Detail: detail, Cure: cure}
}

// settle fills in what is left out.
func (o *Options) settle() (place, error) {
	at := place{handle: tpm2.TPMHandle(o.Handle), file: o.File}
	switch {
	case o.File == "" && o.Handle == 0:
		return at, at.fail(ErrNoKey, "none is named", "name it as tpm:handle=0x81000100 or tpm:/path/key.pem")
	case o.File != "" && o.Handle != 0:
		return at, at.fail(ErrUnsupported, "a handle and a file", "name one of them")
	case o.Handle != 0 && (at.handle < firstPersistent || at.handle > lastPersistent):
		return at, at.fail(ErrUnsupported, "this is no persistent handle", "they go from 0x81000000 to 0x81ffffff")
	}
	if o.File != "" {
		// The process may change its directory before the TPM is opened again.
		if abs, err := filepath.Abs(o.File); err == nil {
			at.file = abs
		}
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Queue <= 0 {
		o.Queue = defaultQueue
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.dial == nil {
		o.dial = dial
	}
	return at, nil
}

func chainOf(at place, chain []*x509.Certificate, public crypto.PublicKey) (der [][]byte, err error) {
	for i, c := range chain {
		if i == 0 {
			if p, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !p.Equal(public) {
				return nil, at.fail(ErrMismatch, "", "use the certificate that was issued for this key")
			}
		}
		der = append(der, bytes.Clone(c.Raw))
	}
	return der, nil
}
