package token

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// A Credential is what a source hands out: a token, a certificate with its key, or both.
// It is never changed, only exchanged, so that its address tells one from the next. It
// shows no secret when it is printed.
type Credential struct {
	Token          string
	CertificatePEM []byte
	KeyPEM         []byte
	Expires        time.Time // zero: not known
}

// MaxToken is how long a token may be, in bytes: API servers take no header beyond.
const MaxToken = 64 << 10

// CheckToken tells what keeps a token from being sent as a bearer token. What is neither a
// letter, a digit nor one of the signs of RFC 6750, section 2.1, is refused only where it
// would end the header or the token: there are servers with tokens of their own making.
func CheckToken(token string) error {
	switch {
	case token == "":
		return errors.New("it is empty")
	case len(token) > MaxToken:
		return fmt.Errorf("it is longer than %d bytes", MaxToken)
	}
	for i := 0; i < len(token); i++ {
		switch c := token[i]; {
		case c < ' ' || c == 0x7f:
			return errors.New("it has a control character or a line end in it")
		case c == ' ':
			return errors.New("it has a space in it; a token stands alone, without \"Bearer\"")
		case c > 0x7f:
			return errors.New("it has a character in it that is not ASCII")
		}
	}
	return nil
}

// Check tells what keeps a credential from being used at a time.
func (c *Credential) Check(now time.Time) error {
	pair := len(c.CertificatePEM) > 0
	switch {
	case pair != (len(c.KeyPEM) > 0):
		return errors.New("it has one half of a pair, a certificate or a key")
	case c.Token == "" && !pair:
		return errors.New("it has neither a token nor a certificate and key")
	}
	if c.Token != "" {
		if err := CheckToken(c.Token); err != nil {
			return fmt.Errorf("its token cannot be sent: %w", err)
		}
	}
	if c.expired(now) {
		return fmt.Errorf("%w at %s", ErrExpired, c.Expires.UTC().Format(time.RFC3339))
	}
	return nil
}

func (c *Credential) expired(now time.Time) bool {
	return !c.Expires.IsZero() && !now.Before(c.Expires.Round(0))
}

// String tells what it is, and no secret.
func (c Credential) String() string {
	var what []string
	if c.Token != "" {
		what = append(what, "token")
	}
	if len(c.CertificatePEM) > 0 {
		what = append(what, "certificate and key")
	}
	if !c.Expires.IsZero() {
		what = append(what, "expires "+c.Expires.UTC().Format(time.RFC3339))
	}
	return "{" + strings.Join(what, ", ") + "}"
}

// GoString is String.
func (c Credential) GoString() string { return "token.Credential" + c.String() }

// LogValue is String.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }
