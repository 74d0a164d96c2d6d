package pkcs11

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// Flags of CK_TOKEN_INFO.
const (
	ckfLoginRequired      = 0x00000004
	ckfTokenInitialized   = 0x00000400
	ckfUserPINCountLow    = 0x00010000
	ckfUserPINFinalTry    = 0x00020000
	ckfUserPINLocked      = 0x00040000
	ckfUserPINInitialized = 0x00000008
)

// link is one child, logged in to the one token.
type link struct {
	host     *host
	token    wire.Token
	loggedIn bool
}

// connect starts a child, which loads the module and logs in to the token. uri tells which.
// Where it fails nothing is left running.
func (c *connector) connect(ctx context.Context, uri *URI) (l *link, err error) {
	module, err := uri.modulePath(c.o.Module)
	if err != nil {
		return nil, err
	}
	h, err := startHost(ctx, c.o, module)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.kill(err)
			<-h.done
		}
	}()
	var tokens wire.Tokens
	if err := h.call(ctx, wire.KindTokens, &wire.TokensRequest{Module: module}, &tokens, c.o.Timeout, nil); err != nil {
		return nil, c.explain(err, "module "+module)
	}
	token, err := pickToken(uri, &tokens)
	if err != nil {
		return nil, err
	}
	l = &link{host: h, token: token}
	return l, c.login(ctx, l)
}

// login opens the sessions and logs in, with the PIN that it asks for.
func (c *connector) login(ctx context.Context, l *link) error {
	start := wire.Start{Token: l.token, Sessions: uint64(c.o.Sessions), Wait: uint64(c.o.Timeout)}
	if l.token.Flags&ckfLoginRequired != 0 && c.o.PIN != nil {
		pin, err := c.pin(ctx, l.token)
		if err != nil {
			return err
		}
		defer clear(pin)
		start.Login, start.PIN, l.loggedIn = true, pin, true
	}
	if err := l.host.call(ctx, wire.KindStart, &start, nil, c.o.Timeout, nil); err != nil {
		if failed := (*wire.Failed)(nil); errors.As(err, &failed) && failed.Call == "C_Login" {
			return c.loginFailed(failed, tokenName(l.token))
		}
		return c.explain(err, tokenName(l.token))
	}
	if a, ok := c.o.PIN.(signer.Accepter); ok && l.loggedIn {
		a.Accepted()
	}
	return nil
}

// pickToken returns the one token that uri names.
func pickToken(uri *URI, all *wire.Tokens) (wire.Token, error) {
	var found, others []wire.Token
	for _, t := range all.Tokens {
		switch {
		case t.Flags&ckfTokenInitialized == 0: // an empty place for a token
		case uri.matchesToken(t, all):
			found = append(found, t)
		default:
			others = append(others, t)
		}
	}
	what := "token " + uri.Token()
	if uri.Token() == "" {
		what = "token of " + uri.String()
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		e := &Error{What: what, Err: ErrNoToken, Detail: "the module shows no token at all", lost: true,
			Cure: "insert it, or name its own module with module-path="}
		if len(others) > 0 {
			e.Detail = "the module shows " + listTokens(others)
			e.Cure = "insert it, or name one of these"
		}
		return wire.Token{}, e
	}
	return wire.Token{}, &Error{What: what, Err: ErrManyTokens, Detail: listTokens(found), Cure: "add ;serial=… to the URI"}
}

func listTokens(all []wire.Token) string {
	var names []string
	for _, t := range all {
		names = append(names, fmt.Sprintf("token=%s;serial=%s", escape(t.Label, ""), escape(t.Serial, "")))
	}
	return listed(names)
}

// matchesToken: what the URI does not name matches everything (RFC 7512, section 2.3).
func (u URI) matchesToken(t wire.Token, library *wire.Tokens) bool {
	for name, is := range map[string]string{
		"token": t.Label, "serial": t.Serial, "model": t.Model, "manufacturer": t.Manufacturer,
		"slot-id": fmt.Sprint(t.Slot), "slot-description": t.SlotDescription, "slot-manufacturer": t.SlotManufacturer,
		"library-manufacturer": library.LibraryManufacturer, "library-description": library.LibraryDescription,
		"library-version": library.LibraryVersion,
	} {
		if want, ok := u.path[name]; ok && want != is {
			return false
		}
	}
	return true
}

func tokenName(t wire.Token) string {
	if t.Label == "" {
		return "token with serial " + quote(t.Serial)
	}
	return "token " + quote(t.Label)
}

// quote keeps what a token says of itself on one line.
func quote(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, s)
}
