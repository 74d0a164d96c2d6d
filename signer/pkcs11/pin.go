package pkcs11

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// connector makes links, one at a time, and remembers which PIN must not be tried again.
type connector struct {
	o *Options

	mu      sync.Mutex
	tried   [sha256.Size]byte  // of the PIN that was used last
	refused *[sha256.Size]byte // of the PIN that was taken for wrong
	locked  bool               // the token said so itself, without a flag that would tell when it ends
}

// pin asks for the PIN, where trying one does no harm.
func (c *connector) pin(ctx context.Context, t wire.Token) ([]byte, error) {
	c.mu.Lock()
	locked := c.locked
	c.mu.Unlock()
	if locked || t.Flags&ckfUserPINLocked != 0 {
		return nil, pinLocked(tokenName(t))
	}
	if t.Flags&ckfUserPINInitialized == 0 {
		return nil, noPIN(tokenName(t))
	}
	if t.Flags&ckfUserPINFinalTry != 0 && !c.o.human() {
		return nil, &Error{What: tokenName(t), Err: ErrPINLastTry, refused: true,
			Detail: "another wrong one locks the token, so it is not spent on a PIN that nobody typed just now",
			Cure:   "log in once by hand: pkcs11-tool --login --list-objects"}
	}
	if t.Flags&ckfUserPINCountLow != 0 {
		c.o.Logger.Warn("a wrong PIN was given to the token since the last right one", "token", t.Label)
	}
	pin, err := c.o.PIN.Secret(ctx)
	if err != nil {
		return nil, err // it says of what
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried = sha256.Sum256(pin)
	if c.refused != nil && subtle.ConstantTimeCompare(c.tried[:], c.refused[:]) == 1 {
		clear(pin)
		return nil, pinRefused(tokenName(t), "it is the one that was refused before, and was not tried again")
	}
	return pin, nil
}

// loginFailed explains what C_Login returned, and sees to it that no PIN is tried twice.
func (c *connector) loginFailed(f *wire.Failed, token string) error {
	switch f.CKR {
	case ckrPINIncorrect, ckrPINInvalid, ckrPINLenRange:
		c.mu.Lock()
		tried := c.tried
		c.refused = &tried
		c.mu.Unlock()
		c.o.PIN.Refused()
		return pinRefused(token, ckrName(f.CKR))
	case ckrPINLocked:
		c.mu.Lock()
		c.locked = true
		c.mu.Unlock()
		return pinLocked(token)
	case ckrPINExpired:
		return &Error{What: token, Err: ErrPIN, Detail: "it has expired", Cure: "set a new one: pkcs11-tool --login --change-pin", refused: true}
	case ckrUserPINNotInitialized:
		return noPIN(token)
	}
	return c.explain(f, token)
}

func pinRefused(token, detail string) error {
	return &Error{What: token, Err: ErrPIN, Detail: detail,
		Cure: "correct the PIN where it comes from; a wrong one is tried once, as tokens lock themselves", refused: true}
}

func pinLocked(token string) error {
	return &Error{What: token, Err: ErrPINLocked, Detail: "after too many wrong ones; none was tried now",
		Cure: "the token's security officer sets a new one: pkcs11-tool --login --login-type so --init-pin", refused: true}
}

func noPIN(token string) error {
	return &Error{What: token, Err: ErrPINNeeded, Detail: "its user PIN was never set",
		Cure: "the token's security officer sets it: pkcs11-tool --login --login-type so --init-pin", refused: true}
}

// explain makes an *Error of what a child answered about what.
func (c *connector) explain(err error, what string) error {
	var f *wire.Failed
	if !errors.As(err, &f) {
		return err
	}
	detail := f.Detail
	if f.Call != "" {
		detail = f.Call + " returned " + ckrName(f.CKR)
	}
	switch f.Problem {
	case wire.ProblemLoad:
		return &Error{What: what, Err: ErrModule, Detail: detail,
			Cure: "name the token's PKCS#11 library, with --pkcs11-module or module-path= in the URI"}
	case wire.ProblemNoCGO:
		return &Error{What: what, Err: ErrNoCGO, Detail: f.Detail,
			Cure: "use one that was built with CGO_ENABLED=1, or a key in a TPM or a file"}
	case wire.ProblemToken:
		return &Error{What: what, Err: ErrLost, Detail: detail, Cure: "leave the token in its reader", lost: true}
	case wire.ProblemBusy:
		return &Error{What: what, Err: ErrBusy, Detail: detail, Cure: "ask for fewer signatures at once"}
	case wire.ProblemUnsupported:
		return &Error{What: what, Err: ErrUnsupported, Detail: detail}
	case wire.ProblemCall:
		if ckrLost(f.CKR) {
			return &Error{What: what, Err: ErrLost, Detail: detail, Cure: "look whether the token is there and reachable", lost: true}
		}
		return &Error{What: what, Err: ErrUnsupported, Detail: detail}
	}
	return fmt.Errorf("%s: %s", what, detail)
}
