package pkcs11

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	_ "crypto/sha256" // the hashes of the schemes
	_ "crypto/sha512"
	"crypto/tls"
	"fmt"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// scheme is one of TLS, RFC 8446 section 4.2.3.
type scheme struct {
	id   tls.SignatureScheme
	hash crypto.Hash
	pss  bool
}

var rsaSchemes = []scheme{
	{tls.PSSWithSHA256, crypto.SHA256, true},
	{tls.PSSWithSHA384, crypto.SHA384, true},
	{tls.PSSWithSHA512, crypto.SHA512, true},
	{tls.PKCS1WithSHA256, crypto.SHA256, false},
	{tls.PKCS1WithSHA384, crypto.SHA384, false},
	{tls.PKCS1WithSHA512, crypto.SHA512, false},
}

// schemesFor returns the schemes that a key of this kind may have. The schemes of ECDSA are
// bound to a curve.
func schemesFor(public crypto.PublicKey) []scheme {
	switch public := public.(type) {
	case *rsa.PublicKey:
		return rsaSchemes
	case *ecdsa.PublicKey:
		switch public.Curve {
		case elliptic.P256():
			return []scheme{{tls.ECDSAWithP256AndSHA256, crypto.SHA256, false}}
		case elliptic.P384():
			return []scheme{{tls.ECDSAWithP384AndSHA384, crypto.SHA384, false}}
		case elliptic.P521():
			return []scheme{{tls.ECDSAWithP521AndSHA512, crypto.SHA512, false}}
		}
	}
	return nil
}

func (s scheme) opts() crypto.SignerOpts {
	if s.pss {
		return &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: s.hash}
	}
	return s.hash
}

// verify tells whether sig is one that TLS takes: the salt of PSS is as long as the hash.
func (s scheme) verify(public crypto.PublicKey, digest, sig []byte) bool {
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(public, digest, sig)
	case *rsa.PublicKey:
		if s.pss {
			return rsa.VerifyPSS(public, s.hash, digest, sig, s.opts().(*rsa.PSSOptions)) == nil
		}
		return rsa.VerifyPKCS1v15(public, s.hash, digest, sig) == nil
	}
	return false
}

// signRequest turns the arguments of crypto.Signer into a message, where they make sense.
func signRequest(public crypto.PublicKey, digest []byte, opts crypto.SignerOpts) (*wire.Sign, error) {
	if opts == nil || opts.HashFunc() == 0 || opts.HashFunc() > crypto.BLAKE2b_512 {
		return nil, fmt.Errorf("sign: what is not the digest of a hash %w", ErrUnsupported)
	}
	hash := opts.HashFunc()
	if len(digest) != hash.Size() {
		return nil, fmt.Errorf("sign: %d bytes are no digest of %v", len(digest), hash)
	}
	m := &wire.Sign{Hash: uint64(hash), Digest: digest}
	key, isRSA := public.(*rsa.PublicKey)
	if pss, ok := opts.(*rsa.PSSOptions); ok {
		if !isRSA {
			return nil, fmt.Errorf("sign: PSS with a key that is not RSA %w", ErrUnsupported)
		}
		room := (key.N.BitLen()-1+7)/8 - 2 - hash.Size() // RFC 8017, section 9.1.1
		salt := pss.SaltLength
		switch salt {
		case rsa.PSSSaltLengthAuto:
			salt = room
		case rsa.PSSSaltLengthEqualsHash:
			salt = hash.Size()
		}
		if salt < 0 || salt > room {
			return nil, fmt.Errorf("sign: a PSS salt of %d bytes with this key and %v %w", salt, hash, ErrUnsupported)
		}
		m.PSS, m.Salt = true, uint64(salt)
	}
	if isRSA {
		switch hash {
		case crypto.SHA256, crypto.SHA384, crypto.SHA512:
		default:
			return nil, fmt.Errorf("sign: RSA with %v %w", hash, ErrUnsupported)
		}
	}
	if ec, ok := public.(*ecdsa.PublicKey); ok {
		// Tokens differ in what they do with a digest that is longer than the curve's order;
		// FIPS 186-5, section 6.4.1, takes its leftmost bits.
		m.Digest = digest[:min(len(digest), (ec.Curve.Params().N.BitLen()+7)/8)]
	}
	return m, nil
}
