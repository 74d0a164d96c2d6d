//go:build cgo && !nopkcs11

package module

import (
	"crypto/elliptic"
	"fmt"

	"github.com/ThalesIgnite/crypto11"
	"github.com/miekg/pkcs11"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// generate makes a key pair.
func (l *library) generate(m *wire.Generate) (wire.Message, error) {
	if l.session == 0 {
		return nil, errOrder
	}
	if l.c == nil {
		return nil, errReadOnly
	}
	// What it shall do is to sign, and nothing else; but not every token lets that be said.
	err := l.generatePair(m, map[crypto11.AttributeType]bool{crypto11.CkaDecrypt: false, crypto11.CkaUnwrap: false})
	switch ckr(err) {
	case pkcs11.CKR_ATTRIBUTE_READ_ONLY, pkcs11.CKR_ATTRIBUTE_TYPE_INVALID, pkcs11.CKR_ATTRIBUTE_VALUE_INVALID, pkcs11.CKR_TEMPLATE_INCONSISTENT:
		err = l.generatePair(m, nil)
	}
	if err != nil {
		return nil, failed("C_GenerateKeyPair", err)
	}
	return nil, nil
}

func (l *library) generatePair(m *wire.Generate, more map[crypto11.AttributeType]bool) error {
	public, err := crypto11.NewAttributeSetWithIDAndLabel(m.ID, m.Label)
	if err != nil {
		return err
	}
	private := public.Copy()
	if err := public.Set(crypto11.CkaPrivate, false); err != nil {
		return err
	}
	flags := map[crypto11.AttributeType]bool{crypto11.CkaPrivate: true, crypto11.CkaSign: true, crypto11.CkaSensitive: true, crypto11.CkaExtractable: false}
	for _, all := range []map[crypto11.AttributeType]bool{flags, more} {
		for kind, v := range all {
			if err := private.Set(kind, v); err != nil {
				return err
			}
		}
	}
	switch signer.Algorithm(m.Algorithm) {
	case signer.ECP256:
		_, err = l.c.GenerateECDSAKeyPairWithAttributes(public, private, elliptic.P256())
	case signer.ECP384:
		_, err = l.c.GenerateECDSAKeyPairWithAttributes(public, private, elliptic.P384())
	case signer.RSA2048:
		_, err = l.c.GenerateRSAKeyPairWithAttributes(public, private, 2048)
	case signer.RSA3072:
		_, err = l.c.GenerateRSAKeyPairWithAttributes(public, private, 3072)
	default:
		err = fmt.Errorf("unknown algorithm %q", m.Algorithm)
	}
	return err
}
