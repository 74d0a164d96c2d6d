package pkcs11

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// StoreCertificate writes the key's certificate to the token, with the id and the label of
// the key, and issuers that come with it; roots it leaves out. Then it deletes the key's older
// certificates, so that at no time the key is without one. chain is DER, leaf first.
//
// The Key itself keeps the chain it was opened with: open it anew to use the new one.
func (k *Key) StoreCertificate(ctx context.Context, chain [][]byte) error {
	if len(chain) == 0 {
		return &Error{What: k.what(), Err: ErrMismatch, Detail: "there is none to store"}
	}
	var certificates []*x509.Certificate
	for _, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("%s: certificate to store: %w", k.what(), err)
		}
		certificates = append(certificates, c)
	}
	if !bytes.Equal(certificates[0].RawSubjectPublicKeyInfo, k.ref.pkix) {
		return &Error{What: k.what(), Err: ErrMismatch, Cure: "store the certificate that was issued for this key"}
	}
	return k.change(ctx, wire.KindStore, func(all *wire.Keys) (m wire.Store) {
		for i, c := range certificates {
			switch {
			case contains(all.Certificates, c.Raw):
			case i == 0:
				m.Write = append(m.Write, wire.Certificate{ID: k.ref.id, Label: k.ref.label, DER: c.Raw})
			case !bytes.Equal(c.RawSubject, c.RawIssuer):
				m.Write = append(m.Write, wire.Certificate{Label: []byte(c.Subject.CommonName), DER: c.Raw})
			}
		}
		for _, old := range k.certificates(all) {
			if !bytes.Equal(old.DER, chain[0]) {
				m.Delete = append(m.Delete, old)
			}
		}
		return m
	})
}

// Destroy deletes the key pair and its certificates from the token, for good, and closes k.
func (k *Key) Destroy(ctx context.Context) error {
	err := k.change(ctx, wire.KindDestroy, func(all *wire.Keys) wire.Store {
		return wire.Store{Delete: k.certificates(all)}
	})
	if err != nil {
		return err
	}
	return k.Close()
}

// change lets the token do what plan makes of the objects that are there now. It is not
// tried twice: half of it may be done.
func (k *Key) change(ctx context.Context, kind wire.Kind, plan func(*wire.Keys) wire.Store) error {
	k.changing.Lock()
	defer k.changing.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.life, cancel)() // Close ends the wait
	l, err := k.live(ctx)
	if err != nil {
		return err
	}
	var all wire.Keys
	err = l.host.call(ctx, wire.KindKeys, nil, &all, k.o.Timeout, nil)
	if err == nil {
		m := plan(&all)
		err = l.host.call(ctx, kind, &m, nil, k.o.Timeout, nil)
	}
	if k.life.Err() != nil {
		return ErrClosed
	}
	err = k.connect.explain(err, k.what())
	if mendable(err) {
		l.host.kill(err)
	}
	return err
}

// certificates returns those of this key.
func (k *Key) certificates(all *wire.Keys) (mine []wire.Certificate) {
	for _, c := range all.Certificates {
		if parsed, err := x509.ParseCertificate(c.DER); err == nil && bytes.Equal(parsed.RawSubjectPublicKeyInfo, k.ref.pkix) {
			mine = append(mine, c)
		}
	}
	return mine
}

func contains(all []wire.Certificate, der []byte) bool {
	for _, c := range all {
		if bytes.Equal(c.DER, der) {
			return true
		}
	}
	return false
}

// discard deletes a key that was just made and does not work.
func (k *Key) discard(ctx context.Context, l *link) {
	if err := l.host.call(ctx, wire.KindDestroy, &wire.Store{}, nil, k.o.Timeout, nil); err != nil && !errors.Is(err, context.Canceled) {
		k.o.Logger.Warn("a new key that does not work stays on the token", "key", k.Location(), "error", err)
	}
}
