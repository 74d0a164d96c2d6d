package tpm

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"

	"github.com/google/go-tpm/tpm2"
)

// scheme is a way to sign, as TLS and the TPM call it.
type scheme struct {
	id   tls.SignatureScheme
	hash crypto.Hash
	alg  tpm2.TPMAlgID
	sum  tpm2.TPMAlgID
}

// schemesOf are those that a key could sign with. The TPM may know less.
func schemesOf(public crypto.PublicKey) []scheme {
	switch p := public.(type) {
	case *ecdsa.PublicKey:
		if p.Curve == elliptic.P384() {
			return []scheme{{tls.ECDSAWithP384AndSHA384, crypto.SHA384, tpm2.TPMAlgECDSA, tpm2.TPMAlgSHA384}}
		}
		return []scheme{{tls.ECDSAWithP256AndSHA256, crypto.SHA256, tpm2.TPMAlgECDSA, tpm2.TPMAlgSHA256}}
	case *rsa.PublicKey:
		return []scheme{
			{tls.PSSWithSHA256, crypto.SHA256, tpm2.TPMAlgRSAPSS, tpm2.TPMAlgSHA256},
			{tls.PSSWithSHA384, crypto.SHA384, tpm2.TPMAlgRSAPSS, tpm2.TPMAlgSHA384},
			{tls.PSSWithSHA512, crypto.SHA512, tpm2.TPMAlgRSAPSS, tpm2.TPMAlgSHA512},
			{tls.PKCS1WithSHA256, crypto.SHA256, tpm2.TPMAlgRSASSA, tpm2.TPMAlgSHA256},
			{tls.PKCS1WithSHA384, crypto.SHA384, tpm2.TPMAlgRSASSA, tpm2.TPMAlgSHA384},
			{tls.PKCS1WithSHA512, crypto.SHA512, tpm2.TPMAlgRSASSA, tpm2.TPMAlgSHA512},
		}
	}
	return nil
}

// pick finds the scheme that crypto.Signer's options ask for.
func pick(from []scheme, digest []byte, opts crypto.SignerOpts) (scheme, error) {
	if opts == nil || opts.HashFunc() == 0 {
		return scheme{}, errors.New("it signs digests, and needs to know of which hash")
	}
	hash := opts.HashFunc()
	if len(digest) != hash.Size() {
		return scheme{}, fmt.Errorf("%d bytes are no digest of %v", len(digest), hash)
	}
	alg := tpm2.TPMAlgRSASSA
	if o, ok := opts.(*rsa.PSSOptions); ok {
		alg = tpm2.TPMAlgRSAPSS
		switch o.SaltLength {
		case rsa.PSSSaltLengthAuto, rsa.PSSSaltLengthEqualsHash, hash.Size():
		default:
			return scheme{}, fmt.Errorf("a PSS salt of %d bytes: TPMs salt with the length of the hash", o.SaltLength)
		}
	}
	for _, s := range from {
		if s.hash == hash && (s.alg == alg || s.alg == tpm2.TPMAlgECDSA && alg == tpm2.TPMAlgRSASSA) {
			return s, nil
		}
	}
	return scheme{}, fmt.Errorf("this key in this TPM does not sign with %v that way", hash)
}

func (s scheme) tpm() tpm2.TPMTSigScheme {
	return tpm2.TPMTSigScheme{Scheme: s.alg, Details: tpm2.NewTPMUSigScheme(s.alg, &tpm2.TPMSSchemeHash{HashAlg: s.sum})}
}

// encode makes of the TPM's signature what crypto.Signer returns.
func (s scheme) encode(t tpm2.TPMTSignature) ([]byte, error) {
	switch s.alg {
	case tpm2.TPMAlgECDSA:
		sig, err := t.Signature.ECDSA()
		if err != nil {
			return nil, err
		}
		return asn1.Marshal(struct{ R, S *big.Int }{
			new(big.Int).SetBytes(sig.SignatureR.Buffer), new(big.Int).SetBytes(sig.SignatureS.Buffer)})
	case tpm2.TPMAlgRSAPSS:
		sig, err := t.Signature.RSAPSS()
		if err != nil {
			return nil, err
		}
		return sig.Sig.Buffer, nil
	default:
		sig, err := t.Signature.RSASSA()
		if err != nil {
			return nil, err
		}
		return sig.Sig.Buffer, nil
	}
}

var (
	errSignature = errors.New("the signature is not the key's")
	errSalt      = errors.New("the PSS salt is not as long as the hash")
)

// verify checks a signature as a TLS 1.3 peer does.
func (s scheme) verify(public crypto.PublicKey, digest, sig []byte) error {
	switch p := public.(type) {
	case *ecdsa.PublicKey:
		if !ecdsa.VerifyASN1(p, digest, sig) {
			return errSignature
		}
		return nil
	case *rsa.PublicKey:
		if s.alg == tpm2.TPMAlgRSASSA {
			if rsa.VerifyPKCS1v15(p, s.hash, digest, sig) != nil {
				return errSignature
			}
			return nil
		}
		if rsa.VerifyPSS(p, s.hash, digest, sig, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}) == nil {
			return nil
		}
		if rsa.VerifyPSS(p, s.hash, digest, sig, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthAuto}) == nil {
			return errSalt
		}
	}
	return errSignature
}

// usable tells whether a key may sign what TLS wants signed, and returns its public half.
func usable(at place, area tpm2.TPMTPublic) (crypto.PublicKey, error) {
	const anew = "make one with `execproxy key create`"
	no := func(why string) (crypto.PublicKey, error) { return nil, at.fail(ErrUnsupported, why, anew) }
	fixed := tpm2.TPMAlgNull
	var bits int
	switch area.Type {
	case tpm2.TPMAlgECC:
		p, err := area.Parameters.ECCDetail()
		if err != nil {
			return nil, at.fail(ErrMalformed, "its public half has no curve", anew)
		}
		if p.CurveID != tpm2.TPMECCNistP256 && p.CurveID != tpm2.TPMECCNistP384 {
			return no("its curve is neither P-256 nor P-384")
		}
		fixed = p.Scheme.Scheme
	case tpm2.TPMAlgRSA:
		p, err := area.Parameters.RSADetail()
		if err != nil {
			return nil, at.fail(ErrMalformed, "its public half has no parameters", anew)
		}
		fixed, bits = p.Scheme.Scheme, int(p.KeyBits)
	default:
		return no("it is neither an EC nor an RSA key")
	}
	switch attr := area.ObjectAttributes; {
	case !attr.SignEncrypt:
		return no("it decrypts, and does not sign")
	case attr.Restricted:
		return no("it is restricted: it signs the TPM's own statements alone")
	case !attr.UserWithAuth:
		return no("it wants a policy for each use")
	case fixed != tpm2.TPMAlgNull && fixed != 0:
		return no("it is fixed to one signature scheme")
	}
	key, err := tpm2.Pub(area)
	if err != nil {
		return nil, at.fail(ErrMalformed, "its public half cannot be parsed", anew)
	}
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		if _, err := key.ECDH(); err != nil {
			return nil, at.fail(ErrMalformed, "its point is not on its curve", anew)
		}
	case *rsa.PublicKey:
		if key.N.BitLen() != bits || bits > 4096 {
			return nil, at.fail(ErrMalformed, "its modulus has not the length it says", anew)
		}
		if bits < 2048 {
			return no(fmt.Sprintf("RSA of %d bits: servers refuse less than 2048", bits))
		}
	}
	return key, nil
}
