package keyhome

import (
	"context"
	"crypto/sha256"
	"errors"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/pkcs11"
)

// nextOnToken is the key that follows k on its token: of the same label, with an
// id that is known from the certificate it follows on, so that one that was made
// before is found.
func (k *Key) nextOnToken(ctx context.Context, c *config.Config, o Options, a signer.Algorithm) (privateKey, error) {
	uri := k.ref.URI
	h := sha256.New()
	h.Write([]byte("execproxy: the key after "))
	h.Write(k.Leaf().Raw)
	ref := k.ref
	ref.URI = uri.Pin(uri.Object(), h.Sum(nil)[:16])
	secret, err := o.secret(c, ref)
	if err != nil {
		return nil, err
	}
	to := o.token(c, ref, secret)
	next, err := pkcs11.Open(ctx, to)
	if errors.Is(err, pkcs11.ErrNoKey) {
		next, err = pkcs11.Create(ctx, to, a)
	}
	if err != nil {
		return nil, err
	}
	return tokenKey{next}, nil
}
