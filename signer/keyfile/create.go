package keyfile

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/execproxy/execproxy/signer"
)

// Create makes a key in a new file, PKCS#8, mode 0600. The Key has no chain; see [LoadBare].
// It never overwrites a file, and fails with a *[Error] where one is in the way.
func Create(path string, a signer.Algorithm) (*Key, error) {
	fail := func(err error, cure string) (*Key, error) {
		return nil, &Error{What: "key", Path: path, Err: err, Cure: cure}
	}
	if path == "" {
		return fail(ErrMissing, "name its file with --key")
	}
	private, err := generate(a)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	err = writeNew(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	var cause *fs.PathError
	switch {
	case err == nil:
		return assemble(private, der, nil), nil
	case errors.Is(err, fs.ErrExist):
		return fail(ErrExists, "name another file, or move this one away")
	case errors.Is(err, fs.ErrNotExist):
		return fail(fmt.Errorf("%w: %w", ErrUnwritable, fs.ErrNotExist), "make its directory "+filepath.Dir(path))
	case errors.As(err, &cause):
		err = cause.Err // the path is said already
	}
	return fail(fmt.Errorf("%w: %w", ErrUnwritable, err), "make its directory writable for the user that runs this")
}

func generate(a signer.Algorithm) (crypto.Signer, error) {
	switch a {
	case signer.ECP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case signer.ECP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case signer.RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case signer.RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	}
	_, err := signer.ParseAlgorithm(string(a))
	if err == nil {
		err = fmt.Errorf("keys of kind %q are not made in files", a)
	}
	return nil, err
}

// writeNew writes a file that was not there, nor a link in its place, and leaves none that is
// cut short.
func writeNew(path string, text []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Sync()
}
