package signertest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha256" // the hashes below
	_ "crypto/sha512"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"
)

// kind is a family of signatures.
type kind string

const (
	ecdsaKind   kind = "ECDSA"
	pkcs1Kind   kind = "RSA PKCS #1 v1.5"
	pssKind     kind = "RSA PSS"
	ed25519Kind kind = "Ed25519"
)

// described is a scheme of RFC 8446 section 4.2.3.
type described struct {
	scheme tls.SignatureScheme
	kind   kind
	hash   crypto.Hash
	curve  elliptic.Curve // of ECDSA
}

var known = []described{
	{tls.ECDSAWithP256AndSHA256, ecdsaKind, crypto.SHA256, elliptic.P256()},
	{tls.ECDSAWithP384AndSHA384, ecdsaKind, crypto.SHA384, elliptic.P384()},
	{tls.ECDSAWithP521AndSHA512, ecdsaKind, crypto.SHA512, elliptic.P521()},
	{tls.PSSWithSHA256, pssKind, crypto.SHA256, nil},
	{tls.PSSWithSHA384, pssKind, crypto.SHA384, nil},
	{tls.PSSWithSHA512, pssKind, crypto.SHA512, nil},
	{tls.PKCS1WithSHA256, pkcs1Kind, crypto.SHA256, nil},
	{tls.PKCS1WithSHA384, pkcs1Kind, crypto.SHA384, nil},
	{tls.PKCS1WithSHA512, pkcs1Kind, crypto.SHA512, nil},
	{tls.Ed25519, ed25519Kind, 0, nil},
}

// describe knows every scheme that a key may name. SHA-1 is none of them.
func describe(s tls.SignatureScheme) (described, bool) {
	for _, d := range known {
		if d.scheme == s {
			return d, true
		}
	}
	return described{}, false
}

func kindOf(public crypto.PublicKey) (string, error) {
	switch public.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA", nil
	case *rsa.PublicKey:
		return "RSA", nil
	case ed25519.PublicKey:
		return "Ed25519", nil
	}
	return "", fmt.Errorf("public key of type %T: crypto/tls knows *ecdsa.PublicKey, *rsa.PublicKey and ed25519.PublicKey", public)
}

// fits returns why a key cannot sign with the scheme: a scheme of ECDSA is for one curve
// (RFC 8446 section 4.2.3).
func (d described) fits(public crypto.PublicKey) error {
	name, err := kindOf(public)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(d.kind), name) {
		return fmt.Errorf("%v is claimed by a key for %s", d.scheme, name)
	}
	if ec, ok := public.(*ecdsa.PublicKey); ok && ec.Curve != d.curve {
		return fmt.Errorf("%v is claimed by a key on %s", d.scheme, ec.Curve.Params().Name)
	}
	return nil
}

// opts are those of crypto/tls.
func (d described) opts() crypto.SignerOpts {
	if d.kind == pssKind {
		return &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: d.hash}
	}
	return d.hash
}

// digest is what a key is given to sign for a message.
func (d described) digest(message string) []byte {
	if d.hash == 0 {
		return []byte(message)
	}
	h := d.hash.New()
	h.Write([]byte(message))
	return h.Sum(nil)
}

// verify does as crypto/tls: the salt of PSS is as long as the hash.
func (d described) verify(public crypto.PublicKey, message string, sig []byte) error {
	digest, ok := d.digest(message), false
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(public, digest, sig)
	case *rsa.PublicKey:
		if d.kind == pssKind {
			ok = rsa.VerifyPSS(public, d.hash, digest, sig, d.opts().(*rsa.PSSOptions)) == nil
		} else {
			ok = rsa.VerifyPKCS1v15(public, d.hash, digest, sig) == nil
		}
	case ed25519.PublicKey:
		ok = ed25519.Verify(public, digest, sig)
	}
	if !ok {
		return &badSignatureError{fmt.Sprintf("%v: the signature (%d bytes) does not verify", d.scheme, len(sig))}
	}
	return nil
}

// badSignatureError: a key may fail, but what it returns without an error must be right.
type badSignatureError struct{ text string }

func (e *badSignatureError) Error() string { return e.text }

// nonsense is what a key must not sign.
type nonsense struct {
	what   string
	digest []byte
	opts   crypto.SignerOpts
}

func (d described) nonsense() []nonsense {
	full := d.digest("message")
	if d.kind == ed25519Kind {
		h := crypto.SHA256.New()
		h.Write(full)
		return []nonsense{{"a digest of SHA-256, which Ed25519 does not sign", h.Sum(nil), crypto.SHA256}}
	}
	return []nonsense{
		{"no digest", nil, d.opts()},
		{"a digest that is one byte short", full[1:], d.opts()},
		{"a digest that is one byte long", append([]byte{1}, full...), d.opts()},
		{"a digest of 8 KiB", make([]byte, 8<<10), d.opts()},
	}
}

// panicError is a panic of the key: one request must not end the process.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("it panics: %v", e.value) }

// sign is k.Sign, whose panic is an error.
func sign(k Key, digest []byte, opts crypto.SignerOpts) (sig []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			sig, err = nil, &panicError{v}
		}
	}()
	return k.Sign(rand.Reader, digest, opts)
}

// signAndVerify makes one signature. public is asked for beforehand, as a key may be closed
// meanwhile.
func signAndVerify(k Key, public crypto.PublicKey, s tls.SignatureScheme, message string) error {
	d, ok := describe(s)
	if !ok {
		return fmt.Errorf("%v is not a scheme for client certificates", s)
	}
	if err := d.fits(public); err != nil {
		return err
	}
	sig, err := sign(k, d.digest(message), d.opts())
	if err != nil {
		return fmt.Errorf("%v: Sign: %w", s, err)
	}
	return d.verify(public, message, sig)
}

// errSlow: the operation goes on in a goroutine that nobody waits for.
var errSlow = errors.New("not done in time")

// within runs f, for d at most. A panic of f is an error.
func within(d time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- &panicError{v}
			}
		}()
		done <- f()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: waited %v", errSlow, d)
	}
}
