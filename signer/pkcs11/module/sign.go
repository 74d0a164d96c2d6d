//go:build cgo && !nopkcs11

package module

import (
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"math/big"

	"github.com/ThalesIgnite/crypto11"
	"github.com/miekg/pkcs11"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// use chooses the key that signs.
func (l *library) use(m *wire.Use) (wire.Message, error) {
	if l.key != nil || m.Index >= uint64(len(l.keys)) {
		return nil, errOrder
	}
	k := &l.keys[m.Index]
	public, err := x509.ParsePKIXPublicKey(k.Public)
	if err != nil {
		return nil, &wire.Failed{Problem: wire.ProblemUnsupported, Detail: "its public key is malformed"}
	}
	l.key = k
	if !k.Always {
		clear(l.pin)
		l.pin = nil
		k.signer = l.signer(k, public)
	}
	return nil, nil
}

// signer returns the key as crypto11 knows it, nil where it does not: it asks for a CKA_ID
// and for a public key in the one encoding that it reads.
func (l *library) signer(k *privateKey, public crypto.PublicKey) crypto11.Signer {
	if l.c == nil || len(k.ID) == 0 {
		return nil
	}
	attributes := crypto11.NewAttributeSet()
	if set(attributes, map[crypto11.AttributeType][]byte{crypto11.CkaId: k.ID, crypto11.CkaLabel: k.Label}) != nil {
		return nil
	}
	found, err := l.c.FindKeyPairsWithAttributes(attributes)
	if err != nil || len(found) != 1 { // with two of them, which one it takes is not to be known
		return nil
	}
	if p, ok := public.(interface{ Equal(crypto.PublicKey) bool }); !ok || !p.Equal(found[0].Public()) {
		return nil
	}
	return found[0]
}

func (l *library) sign(m *wire.Sign) (wire.Message, error) {
	if l.key == nil {
		return nil, errOrder
	}
	hash := crypto.Hash(m.Hash)
	var sig []byte
	var err error
	switch {
	case l.key.signer == nil:
		sig, err = l.signAlone(m, hash)
	case m.PSS:
		sig, err = l.key.signer.Sign(nil, m.Digest, &rsa.PSSOptions{Hash: hash, SaltLength: int(m.Salt)})
	default:
		sig, err = l.key.signer.Sign(nil, m.Digest, hash)
	}
	if err != nil {
		if already := (*wire.Failed)(nil); errors.As(err, &already) {
			return nil, already
		}
		return nil, failed("C_Sign", err)
	}
	return &wire.Signature{Signature: sig}, nil
}

// signAlone signs on our own session, one signature at a time.
func (l *library) signAlone(m *wire.Sign, hash crypto.Hash) ([]byte, error) {
	l.own.Lock()
	defer l.own.Unlock()
	mechanism, message, err := l.mechanism(m, hash)
	if err != nil {
		return nil, err
	}
	if err := l.p.SignInit(l.session, []*pkcs11.Mechanism{mechanism}, l.key.handle); err != nil {
		return nil, failed("C_SignInit", err)
	}
	if l.key.Always {
		if err := l.login(pkcs11.CKU_CONTEXT_SPECIFIC, l.pin); err != nil {
			return nil, err
		}
	}
	sig, err := l.p.Sign(l.session, message)
	if err != nil {
		return nil, failed("C_Sign", err)
	}
	if mechanism.Mechanism != pkcs11.CKM_ECDSA {
		return sig, nil
	}
	half := len(sig) / 2
	return asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(sig[:half]), new(big.Int).SetBytes(sig[half:])})
}

// hashes are what PKCS#11 and PKCS #1 call the hashes: the mechanism, the mask generation
// function, and the head of a DigestInfo (RFC 8017, section 9.2, note 1).
var hashes = map[crypto.Hash]struct {
	mechanism, mgf uint
	head           []byte
}{
	crypto.SHA256: {pkcs11.CKM_SHA256, pkcs11.CKG_MGF1_SHA256, []byte("\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20")},
	crypto.SHA384: {pkcs11.CKM_SHA384, pkcs11.CKG_MGF1_SHA384, []byte("\x30\x41\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\x04\x30")},
	crypto.SHA512: {pkcs11.CKM_SHA512, pkcs11.CKG_MGF1_SHA512, []byte("\x30\x51\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x03\x05\x00\x04\x40")},
}

func (l *library) mechanism(m *wire.Sign, hash crypto.Hash) (*pkcs11.Mechanism, []byte, error) {
	public, err := x509.ParsePKIXPublicKey(l.key.Public)
	if err != nil {
		return nil, nil, err
	}
	if _, ok := public.(*rsa.PublicKey); !ok {
		return pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil), m.Digest, nil
	}
	h, ok := hashes[hash]
	switch {
	case !ok:
		return nil, nil, &wire.Failed{Problem: wire.ProblemUnsupported, Detail: "RSA with " + hash.String()}
	case m.PSS:
		return pkcs11.NewMechanism(pkcs11.CKM_RSA_PKCS_PSS, pkcs11.NewPSSParams(h.mechanism, h.mgf, uint(m.Salt))), m.Digest, nil
	}
	return pkcs11.NewMechanism(pkcs11.CKM_RSA_PKCS, nil), append(append([]byte(nil), h.head...), m.Digest...), nil
}
