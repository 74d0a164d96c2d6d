//go:build cgo && !nopkcs11

package module

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"math/big"

	"github.com/ThalesIgnite/crypto11"
	"github.com/miekg/pkcs11"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

const (
	maxCertificates     = 64
	maxCertificateBytes = wire.MaxFrame / 2
)

// privateKey is a private key on the token.
type privateKey struct {
	wire.Key
	handle pkcs11.ObjectHandle
	signer crypto11.Signer // nil: we sign on our own session
}

func (l *library) find(template ...*pkcs11.Attribute) (all []pkcs11.ObjectHandle, err error) {
	if err := l.p.FindObjectsInit(l.session, template); err != nil {
		return nil, failed("C_FindObjectsInit", err)
	}
	for {
		some, _, err := l.p.FindObjects(l.session, 32)
		if err != nil {
			_ = l.p.FindObjectsFinal(l.session)
			return nil, failed("C_FindObjects", err)
		}
		if len(some) == 0 {
			break
		}
		all = append(all, some...)
	}
	if err := l.p.FindObjectsFinal(l.session); err != nil {
		return nil, failed("C_FindObjectsFinal", err)
	}
	return all, nil
}

// attribute returns an attribute, nil where the object has none. One at a time: a library
// that lacks one of several returns none.
func (l *library) attribute(o pkcs11.ObjectHandle, kind uint) []byte {
	got, err := l.p.GetAttributeValue(l.session, o, []*pkcs11.Attribute{pkcs11.NewAttribute(kind, nil)})
	if err != nil || len(got) != 1 {
		return nil
	}
	return got[0].Value
}

// is tells whether a CK_BBOOL or CK_ULONG attribute is v.
func (l *library) is(o pkcs11.ObjectHandle, kind uint, v any) bool {
	return bytes.Equal(l.attribute(o, kind), pkcs11.NewAttribute(kind, v).Value)
}

// list finds the private keys that may sign, and the certificates.
func (l *library) list() (wire.Message, error) {
	if l.session == 0 {
		return nil, errOrder
	}
	l.own.Lock()
	defer l.own.Unlock()
	handles, err := l.find(pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY))
	if err != nil {
		return nil, err
	}
	certificates, _, err := l.certificates()
	if err != nil {
		return nil, err
	}
	out := &wire.Keys{Certificates: certificates}
	l.keys = nil
	for _, h := range handles {
		if l.is(h, pkcs11.CKA_SIGN, false) {
			continue
		}
		k := privateKey{handle: h, Key: wire.Key{
			ID: l.attribute(h, pkcs11.CKA_ID), Label: l.attribute(h, pkcs11.CKA_LABEL), Always: l.is(h, pkcs11.CKA_ALWAYS_AUTHENTICATE, true),
		}}
		k.Public, k.Problem = l.public(h, k.Key, certificates)
		l.keys = append(l.keys, k)
		out.Keys = append(out.Keys, k.Key)
	}
	return out, nil
}

// certificates returns the certificates of the token, and their handles.
func (l *library) certificates() (all []wire.Certificate, handles []pkcs11.ObjectHandle, err error) {
	found, err := l.find(pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_CERTIFICATE))
	if err != nil {
		return nil, nil, err
	}
	size := 0
	for _, h := range found {
		der := l.attribute(h, pkcs11.CKA_VALUE)
		if size += len(der); len(der) == 0 || len(all) == maxCertificates || size > maxCertificateBytes {
			continue
		}
		all = append(all, wire.Certificate{ID: l.attribute(h, pkcs11.CKA_ID), Label: l.attribute(h, pkcs11.CKA_LABEL), DER: der})
		handles = append(handles, h)
	}
	return all, handles, nil
}

// public returns the public key of a private key: that of the public key object beside it,
// what the private key itself tells, or that of a certificate beside it.
func (l *library) public(h pkcs11.ObjectHandle, k wire.Key, certificates []wire.Certificate) (pkix []byte, problem string) {
	sources := []pkcs11.ObjectHandle{}
	for _, o := range l.publicObjects(k) {
		if bytes.Equal(l.attribute(o, pkcs11.CKA_LABEL), k.Label) {
			sources = append([]pkcs11.ObjectHandle{o}, sources...)
		} else {
			sources = append(sources, o)
		}
	}
	kind := l.attribute(h, pkcs11.CKA_KEY_TYPE)
	problem = "the token has no public key and no certificate for it"
	for _, o := range append(sources, h) {
		if !bytes.Equal(l.attribute(o, pkcs11.CKA_KEY_TYPE), kind) {
			continue
		}
		if public := l.export(o); public != nil {
			if der, err := x509.MarshalPKIXPublicKey(public); err == nil {
				return der, ""
			}
		}
		if o != h {
			problem = "it is on a curve that is not supported, or its public key is malformed"
		}
	}
	for _, c := range certificates {
		if len(k.ID) > 0 && bytes.Equal(c.ID, k.ID) {
			if parsed, err := x509.ParseCertificate(c.DER); err == nil {
				return parsed.RawSubjectPublicKeyInfo, ""
			}
		}
	}
	return nil, problem
}

// publicObjects returns those with the id of a private key, or with its label where it has
// no id.
func (l *library) publicObjects(k wire.Key) []pkcs11.ObjectHandle {
	same := pkcs11.NewAttribute(pkcs11.CKA_ID, k.ID)
	if len(k.ID) == 0 {
		if same = pkcs11.NewAttribute(pkcs11.CKA_LABEL, k.Label); len(k.Label) == 0 {
			return nil
		}
	}
	all, err := l.find(pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PUBLIC_KEY), same)
	if err != nil {
		return nil
	}
	return all
}

var curves = map[string]elliptic.Curve{
	"1.2.840.10045.3.1.7": elliptic.P256(),
	"1.3.132.0.34":        elliptic.P384(),
	"1.3.132.0.35":        elliptic.P521(),
}

// export reads a public key from an object's attributes, nil where they do not tell.
func (l *library) export(o pkcs11.ObjectHandle) crypto.PublicKey {
	switch {
	case l.is(o, pkcs11.CKA_KEY_TYPE, pkcs11.CKK_RSA):
		n, e := l.attribute(o, pkcs11.CKA_MODULUS), new(big.Int).SetBytes(l.attribute(o, pkcs11.CKA_PUBLIC_EXPONENT))
		if len(n) == 0 || e.BitLen() < 2 || e.BitLen() > 31 {
			return nil
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(e.Int64())}
	case l.is(o, pkcs11.CKA_KEY_TYPE, pkcs11.CKK_EC):
		return parsePoint(l.attribute(o, pkcs11.CKA_EC_PARAMS), l.attribute(o, pkcs11.CKA_EC_POINT))
	}
	return nil
}

// parsePoint reads CKA_EC_POINT: DER of an octet string, which some libraries leave out.
func parsePoint(params, point []byte) crypto.PublicKey {
	var oid asn1.ObjectIdentifier
	if rest, err := asn1.Unmarshal(params, &oid); err != nil || len(rest) > 0 {
		return nil
	}
	curve := curves[oid.String()]
	if curve == nil {
		return nil
	}
	var inner []byte
	if rest, err := asn1.Unmarshal(point, &inner); err == nil && len(rest) == 0 {
		point = inner
	}
	public, err := ecdsa.ParseUncompressedPublicKey(curve, point)
	if err != nil {
		return nil
	}
	return public
}

// store writes certificates, then deletes others.
func (l *library) store(m *wire.Store) (wire.Message, error) {
	if l.session == 0 {
		return nil, errOrder
	}
	if l.c == nil && len(m.Write) > 0 {
		return nil, errReadOnly
	}
	for _, c := range m.Write {
		parsed, err := x509.ParseCertificate(c.DER)
		if err != nil {
			return nil, err
		}
		attributes := crypto11.NewAttributeSet()
		if err := set(attributes, map[crypto11.AttributeType][]byte{crypto11.CkaId: c.ID, crypto11.CkaLabel: c.Label}); err != nil {
			return nil, err
		}
		if err := l.c.ImportCertificateWithAttributes(attributes, parsed); err != nil {
			return nil, failed("C_CreateObject", err)
		}
	}
	return nil, l.deleteCertificates(m.Delete)
}

var errReadOnly = &wire.Failed{Problem: wire.ProblemUnsupported, Detail: "the token is write-protected, or has too few sessions to write"}

func set(attributes crypto11.AttributeSet, values map[crypto11.AttributeType][]byte) error {
	for kind, v := range values {
		if len(v) == 0 {
			continue // an empty attribute is a malformed one to some libraries
		}
		if err := attributes.Set(kind, v); err != nil {
			return err
		}
	}
	return nil
}

func (l *library) deleteCertificates(these []wire.Certificate) error {
	if len(these) == 0 {
		return nil
	}
	l.own.Lock()
	defer l.own.Unlock()
	all, handles, err := l.certificates()
	if err != nil {
		return err
	}
	for i, c := range all {
		for _, unwanted := range these {
			if bytes.Equal(c.DER, unwanted.DER) && bytes.Equal(c.ID, unwanted.ID) {
				if err := l.p.DestroyObject(l.session, handles[i]); err != nil {
					return failed("C_DestroyObject", err)
				}
				break
			}
		}
	}
	return nil
}

// destroy deletes certificates and then the key pair in use, the private key last: if it
// fails in between, the key can still be named and the rest deleted.
func (l *library) destroy(m *wire.Store) (wire.Message, error) {
	if l.key == nil {
		return nil, errOrder
	}
	if err := l.deleteCertificates(m.Delete); err != nil {
		return nil, err
	}
	l.own.Lock()
	defer l.own.Unlock()
	for _, o := range l.publicObjects(l.key.Key) {
		if der, err := x509.MarshalPKIXPublicKey(l.export(o)); err == nil && bytes.Equal(der, l.key.Public) {
			if err := l.p.DestroyObject(l.session, o); err != nil {
				return nil, failed("C_DestroyObject", err)
			}
		}
	}
	if err := l.p.DestroyObject(l.session, l.key.handle); err != nil {
		return nil, failed("C_DestroyObject", err)
	}
	l.key = nil
	return nil, nil
}
