package pkcs11

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// Open opens the one key that o.URI names. It fails with an *[Error], or with what o.PIN
// returned.
func Open(ctx context.Context, o Options) (*Key, error) {
	return open(ctx, o, func(*Key, *link) (*URI, error) { return o.URI, nil })
}

// Create makes a key pair on the token and opens it. The URI must have an object, which is
// the label of the pair; its id, where it has one, is the CKA_ID, else that is made up. It
// refuses a label that a key has already, unless an id is given: a renewal with a new key
// gives the same label another id.
func Create(ctx context.Context, o Options, a signer.Algorithm) (*Key, error) {
	if _, err := signer.ParseAlgorithm(string(a)); err != nil {
		return nil, fmt.Errorf("create PKCS#11 key: %w", err)
	}
	if o.URI != nil && o.URI.Object() == "" {
		return nil, &Error{What: "PKCS#11 URI", Err: ErrURI, Detail: "it has no label for the new key", Cure: "add ;object=LABEL"}
	}
	o.Chain = nil // a new key has no certificate
	return open(ctx, o, func(k *Key, l *link) (*URI, error) { return k.generate(ctx, l, a) })
}

func (k *Key) generate(ctx context.Context, l *link, a signer.Algorithm) (*URI, error) {
	label, id := k.o.URI.Object(), k.o.URI.ID()
	if !l.loggedIn && l.token.Flags&ckfLoginRequired != 0 {
		return nil, &Error{What: tokenName(l.token), Err: ErrPINNeeded, Detail: "it makes keys for those who log in",
			Cure: "tell where the PIN is, with --pin-source or pin-source= in the URI"}
	}
	var keys wire.Keys
	if err := l.host.call(ctx, wire.KindKeys, nil, &keys, k.o.Timeout, nil); err != nil {
		return nil, k.connect.explain(err, tokenName(l.token))
	}
	for i, old := range keys.Keys {
		if id != nil && bytes.Equal(old.ID, id) || id == nil && string(old.Label) == label {
			return nil, &Error{What: tokenName(l.token), Err: ErrExists, Detail: listKeys(&keys, []int{i}),
				Cure: "use it, or give the new one another label, or an id of its own with ;id=…"}
		}
	}
	if id == nil {
		id = make([]byte, 16)
		_, _ = rand.Read(id) // never fails
	}
	m := &wire.Generate{Algorithm: string(a), ID: id, Label: []byte(label)}
	if err := l.host.call(ctx, wire.KindGenerate, m, nil, max(k.o.Timeout, generateTimeout), nil); err != nil {
		return nil, k.connect.explain(err, tokenName(l.token)+": create a key "+string(a))
	}
	k.ref.made = true
	return k.o.URI.Pin(label, id), nil
}

// open connects to the token, lets name tell which key there is meant, and tests it.
func open(ctx context.Context, given Options, name func(*Key, *link) (*URI, error)) (_ *Key, err error) {
	o, err := given.settle()
	if err != nil {
		return nil, err
	}
	k := &Key{o: o, connect: connector{o: o}, sessions: make(chan struct{}, o.Sessions)}
	k.life, k.end = context.WithCancel(context.WithoutCancel(ctx))
	l, err := k.connect.connect(ctx, o.URI)
	if err == nil {
		k.link = l
		err = k.begin(ctx, l, name)
	}
	if err != nil {
		_ = k.Close()
		if cause := ctx.Err(); cause != nil && errors.Is(err, cause) {
			err = fmt.Errorf("open key %v: %w", o.URI, err)
		}
		return nil, err
	}
	return k, nil
}

func (k *Key) begin(ctx context.Context, l *link, name func(*Key, *link) (*URI, error)) error {
	uri, err := name(k, l)
	if err != nil {
		return err
	}
	keys, err := k.use(ctx, l, uri, k.o.chainKey())
	if err != nil {
		return err
	}
	if k.public, err = parsePublic(k.ref.pkix, k.what()); err != nil {
		return err
	}
	for _, c := range k.o.Chain {
		k.chain = append(k.chain, c.Raw)
	}
	if k.o.Chain == nil {
		k.chain = chainOf(wire.Key{Public: k.ref.pkix}, keys.Certificates, time.Now())
	}
	if len(k.chain) > 0 {
		if k.leaf, err = x509.ParseCertificate(k.chain[0]); err != nil {
			return fmt.Errorf("%s: its certificate: %w", k.what(), err)
		}
	}
	if err := k.selfTest(ctx, l); err != nil {
		if k.ref.made {
			k.discard(ctx, l)
		}
		return err
	}
	return nil
}

// use finds the key on the token, chooses it for all that follows, and remembers it.
func (k *Key) use(ctx context.Context, l *link, uri *URI, pkix []byte) (*wire.Keys, error) {
	var keys wire.Keys
	if err := l.host.call(ctx, wire.KindKeys, nil, &keys, k.o.Timeout, nil); err != nil {
		return nil, k.connect.explain(err, tokenName(l.token))
	}
	place, err := pickKey(uri, &keys, pkix, l.loggedIn, l.token, time.Now())
	if err != nil {
		return nil, err
	}
	if err := l.host.call(ctx, wire.KindUse, &wire.Use{Index: uint64(place)}, nil, k.o.Timeout, nil); err != nil {
		return nil, k.connect.explain(err, "key "+uri.String())
	}
	if k.ref.pkix == nil {
		found := keys.Keys[place]
		k.ref.id, k.ref.label, k.ref.pkix = bytes.Clone(found.ID), bytes.Clone(found.Label), bytes.Clone(found.Public)
		k.uri = uri.at(l.token, found)
	}
	return &keys, nil
}
