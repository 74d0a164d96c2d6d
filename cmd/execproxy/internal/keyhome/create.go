package keyhome

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/certificate"
	"github.com/execproxy/execproxy/signer/keyfile"
	"github.com/execproxy/execproxy/signer/pkcs11"
	"github.com/execproxy/execproxy/signer/tpm"
)

// Create makes the key that the configuration names, where there is none yet.
func Create(ctx context.Context, c *config.Config, o Options, a signer.Algorithm) (*Key, error) {
	ref, err := c.KeyRef()
	if err != nil {
		return nil, err
	}
	private, err := create(ctx, c, ref, o, a)
	if err != nil {
		return nil, err
	}
	return &Key{private: newHandle(private), ref: ref, cert: c.Cert}, nil
}

func create(ctx context.Context, c *config.Config, ref config.KeyRef, o Options, a signer.Algorithm) (privateKey, error) {
	secret, err := o.secret(c, ref)
	if err != nil {
		return nil, err
	}
	switch ref.Home {
	case config.HomePKCS11:
		k, err := pkcs11.Create(ctx, o.token(c, ref, secret), a)
		if err != nil {
			return nil, err
		}
		return tokenKey{k}, nil
	case config.HomeTPM:
		k, err := tpm.Create(ctx, o.tpm(c, ref, secret), a)
		if err != nil {
			return nil, err
		}
		return tpmKey{k}, nil
	}
	return keyfile.Create(ref.Path, a)
}

// CheckStore tries whether a chain can be stored, as far as that can be known.
func (k *Key) CheckStore() error {
	if k.cert == "" {
		return nil
	}
	if k.cert != k.ref.Path {
		text, _, err := certificate.ReadFile("certificate", k.cert)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
			return &config.FieldError{Field: "cert", Err: fmt.Errorf("%s holds another private key, whose certificate would be lost; name a file of its own", k.cert)}
		}
		if blocks, err := certificate.Blocks("certificate", k.cert, text); len(text) > 0 && (err != nil || len(blocks) == 0) {
			return &config.FieldError{Field: "cert", Err: fmt.Errorf("%s is no PEM file, and would be overwritten; name another", k.cert)}
		}
	}
	f, err := os.CreateTemp(filepath.Dir(k.cert), ".execproxy-*")
	if err != nil {
		return &config.FieldError{Field: "cert", Err: fmt.Errorf("the certificate cannot be stored: %w; make the directory, or make it writable", err)}
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Store keeps the chain where the key's is kept, in the place of the one before,
// and returns the key with it: also with an error, where the chain is good and
// could not be kept.
func (k *Key) Store(ctx context.Context, chain []*x509.Certificate) (*Key, error) {
	next, err := k.With(chain)
	if err != nil {
		return nil, err
	}
	if k.cert != "" {
		return next, certificate.Replace(k.cert, next.CertificateChain())
	}
	s, ok := k.private.privateKey.(interface {
		StoreCertificate(ctx context.Context, chain [][]byte) error
	})
	if !ok {
		return nil, fmt.Errorf("key %s: its home keeps no certificates: name a file with --cert", k.Location())
	}
	return next, s.StoreCertificate(ctx, next.CertificateChain())
}

// pending is where the next key of a file waits for its certificate.
func pending(path string) string { return path + ".next" }

// Next is a new key in the home of k, of the same kind, which Store puts in the
// place of k. One that was made before and got no certificate is taken up again.
func (k *Key) Next(ctx context.Context, c *config.Config, o Options) (*Key, error) {
	a, err := k.algorithm()
	if err != nil {
		return nil, err
	}
	next := *c
	switch {
	case k.ref.Path == "":
		// On the token the newest certificate tells which key of a label is meant.
		private, err := k.nextOnToken(ctx, c, o, a)
		if err != nil {
			return nil, err
		}
		return &Key{private: newHandle(private), ref: k.ref, cert: c.Cert}, nil
	case k.ref.Home == config.HomeTPM:
		next.Key = config.HomeTPM + ":" + pending(k.ref.Path)
	default:
		next.Key = pending(k.ref.Path)
	}
	next.Cert = pending(k.ref.Path)
	found, err := OpenBare(ctx, &next, o)
	if errors.Is(err, fs.ErrNotExist) {
		found, err = Create(ctx, &next, o, a)
	}
	return found, err
}

// Replace stores the chain with the new key next, in the place of k and its chain.
// In files there is one step before which k is the key, with its chain, and after
// which next is. As Store does, it returns the key also where it is good and could
// not be kept.
func (k *Key) Replace(ctx context.Context, next *Key, chain []*x509.Certificate) (*Key, error) {
	if k.ref.Path == "" {
		return next.Store(ctx, chain)
	}
	stored, err := next.With(chain)
	if err != nil {
		return nil, err
	}
	stored.ref, stored.cert = k.ref, k.cert
	path := pending(k.ref.Path)
	if err := certificate.Replace(path, stored.CertificateChain()); err != nil {
		return stored, err
	}
	if err := os.Rename(path, k.ref.Path); err != nil {
		return stored, err
	}
	if k.cert != k.ref.Path {
		// Until this is done, whoever opens the key finds the chain in its file.
		return stored, certificate.Replace(k.cert, stored.CertificateChain())
	}
	return stored, nil
}

// Forget destroys a key that another has replaced, where its home would keep it: a
// token. Of a file nothing is left.
func (k *Key) Forget(ctx context.Context) error {
	if k.ref.Home != config.HomePKCS11 {
		return nil
	}
	d, ok := k.private.privateKey.(interface{ Destroy(context.Context) error })
	if !ok {
		return nil
	}
	return d.Destroy(ctx)
}
