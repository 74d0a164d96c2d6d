package keyhome

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"fmt"

	"github.com/execproxy/execproxy/signer"
)

// algorithm is what a key like k is made with.
func (k *Key) algorithm() (signer.Algorithm, error) {
	switch public := k.Public().(type) {
	case *ecdsa.PublicKey:
		switch public.Curve {
		case elliptic.P256():
			return signer.ECP256, nil
		case elliptic.P384():
			return signer.ECP384, nil
		}
	case *rsa.PublicKey:
		switch public.N.BitLen() {
		case 2048:
			return signer.RSA2048, nil
		case 3072:
			return signer.RSA3072, nil
		}
	}
	return "", fmt.Errorf("key %s: no new %s key can be made: say --renew same-key", k.Location(), k.Kind())
}
