//go:build !cgo || nopkcs11

package module

import "github.com/execproxy/execproxy/signer/pkcs11/internal/wire"

// Available returns [ErrUnavailable]: this build has no PKCS#11.
func Available() error { return ErrUnavailable }

func newHandler() handler {
	return func(wire.Kind, []byte) (wire.Message, error) {
		return nil, &wire.Failed{Problem: wire.ProblemNoCGO, Detail: "it was built without cgo, or with the tag nopkcs11"}
	}
}
