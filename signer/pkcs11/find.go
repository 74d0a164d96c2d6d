package pkcs11

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// keyRef is what is remembered of a key, to find it again.
type keyRef struct {
	id, label []byte
	pkix      []byte
	made      bool // by Create
}

// pickKey returns the place in all of the one key that uri names. pkix, where it is not nil,
// is its public key: that of the certificate it shall belong to.
//
// Several keys may have one label, as a renewal may make a new one: then the one with the
// newest valid certificate wins.
func pickKey(uri *URI, all *wire.Keys, pkix []byte, loggedIn bool, token wire.Token, now time.Time) (int, error) {
	what := "key " + uri.Pin(uri.Object(), uri.ID()).String()
	var named []int
	for i, k := range all.Keys {
		if (uri.Object() == "" || uri.Object() == string(k.Label)) && (uri.ID() == nil || bytes.Equal(uri.ID(), k.ID)) {
			named = append(named, i)
		}
	}
	if len(named) == 0 {
		return 0, noKey(what, all, loggedIn, token)
	}
	if pkix != nil {
		for _, i := range named {
			if bytes.Equal(all.Keys[i].Public, pkix) {
				return i, nil
			}
		}
		return 0, &Error{What: what, Err: ErrMismatch, Detail: "no key of this name has the public key that is asked for",
			Cure: "use the certificate that was issued for this key"}
	}
	best, newest := -1, (*x509.Certificate)(nil)
	for _, i := range named {
		c := newestOf(certificatesOf(all.Keys[i], all.Certificates), now)
		if c != nil && (newest == nil || better(c, newest, now) < 0) {
			best, newest = i, c
		}
	}
	switch {
	case len(named) == 1:
		best = named[0]
	case best < 0:
		return 0, &Error{What: what, Err: ErrManyKeys, Detail: listKeys(all, named), Cure: "add ;id=… to the URI"}
	}
	if k := all.Keys[best]; len(k.Public) == 0 {
		return 0, &Error{What: what, Err: ErrNoKey, Detail: k.Problem,
			Cure: "write its public key or its certificate to the token, with the same id: pkcs11-tool --write-object"}
	}
	return best, nil
}

func noKey(what string, all *wire.Keys, loggedIn bool, token wire.Token) error {
	if !loggedIn && token.Flags&ckfLoginRequired != 0 {
		return &Error{What: tokenName(token), Err: ErrPINNeeded, Detail: "it shows no such key to whom does not log in",
			Cure: "tell where the PIN is, with --pin-source or pin-source= in the URI"}
	}
	e := &Error{What: what, Err: ErrNoKey, Detail: tokenName(token) + " has no private key", lost: true,
		Cure: "make it with `execproxy key create`, or name another token"}
	if len(all.Keys) > 0 {
		e.Detail = tokenName(token) + " has " + listKeys(all, nil)
		e.Cure = "name one of these, or make it with `execproxy key create`"
	}
	return e
}

// listKeys names the keys at these places, nil for all.
func listKeys(all *wire.Keys, places []int) string {
	if places == nil {
		for i := range all.Keys {
			places = append(places, i)
		}
	}
	var names []string
	for _, i := range places {
		k := all.Keys[i]
		names = append(names, fmt.Sprintf("object=%s;id=%s", escape(string(k.Label), ""), escape(string(k.ID), "\x00")))
	}
	return listed(names)
}

// listed puts names on a line that somebody can read.
func listed(names []string) string {
	slices.Sort(names)
	if n := len(names) - 8; n > 0 {
		names = append(names[:8], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, ", ")
}

// certificatesOf returns the certificates for a key, whatever they are called.
func certificatesOf(k wire.Key, all []wire.Certificate) (mine []*x509.Certificate) {
	if len(k.Public) == 0 {
		return nil
	}
	for _, c := range all {
		if parsed, err := x509.ParseCertificate(c.DER); err == nil && bytes.Equal(parsed.RawSubjectPublicKeyInfo, k.Public) {
			mine = append(mine, parsed)
		}
	}
	return mine
}

// newestOf returns the certificate to use, nil of none.
func newestOf(all []*x509.Certificate, now time.Time) *x509.Certificate {
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *x509.Certificate) int { return better(a, b, now) })
}

// better orders certificates: valid ones first, then by their age.
func better(a, b *x509.Certificate, now time.Time) int {
	valid := func(c *x509.Certificate) int {
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			return 0
		}
		return 1
	}
	return cmp.Or(valid(b)-valid(a), b.NotBefore.Compare(a.NotBefore), b.NotAfter.Compare(a.NotAfter))
}

// chainOf returns the certificate of k and those of its issuers that the token has, DER.
func chainOf(k wire.Key, all []wire.Certificate, now time.Time) (chain [][]byte) {
	leaf := newestOf(certificatesOf(k, all), now)
	if leaf == nil {
		return nil
	}
	chain = [][]byte{leaf.Raw}
	for last := leaf; len(chain) < 8; {
		var issuers []*x509.Certificate
		for _, c := range all {
			parsed, err := x509.ParseCertificate(c.DER)
			// A root is left out: whoever verifies has it, or does not trust it.
			if err == nil && !bytes.Equal(parsed.RawIssuer, parsed.RawSubject) && last.CheckSignatureFrom(parsed) == nil {
				issuers = append(issuers, parsed)
			}
		}
		if last = newestOf(issuers, now); last == nil || slices.ContainsFunc(chain, func(der []byte) bool { return bytes.Equal(der, last.Raw) }) {
			break
		}
		chain = append(chain, last.Raw)
	}
	return chain
}

// parsePublic reads a public key, and refuses what no scheme here is for.
func parsePublic(pkix []byte, what string) (crypto.PublicKey, error) {
	public, err := x509.ParsePKIXPublicKey(pkix)
	if err != nil {
		return nil, &Error{What: what, Err: ErrUnsupported, Detail: "its public key is malformed"}
	}
	switch public.(type) {
	case *ecdsa.PublicKey, *rsa.PublicKey:
		return public, nil
	}
	return nil, &Error{What: what, Err: ErrUnsupported, Detail: fmt.Sprintf("%T", public), Cure: "use an EC P-256, EC P-384 or RSA key"}
}

// at returns a URI for this key on this token, which both are where u matches.
func (u URI) at(t wire.Token, k wire.Key) *URI {
	path := map[string]string{"token": t.Label, "serial": t.Serial, "object": string(k.Label), "id": string(k.ID), "type": ""}
	if t.Serial != "" {
		// A reader plugged in elsewhere, or a library that was upgraded, shows the same token.
		for _, name := range []string{"manufacturer", "model", "slot-id", "slot-description", "slot-manufacturer", "library-description", "library-manufacturer", "library-version"} {
			path[name] = ""
		}
	}
	return u.with(path)
}
