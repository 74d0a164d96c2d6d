package keyhome

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/certificate"
	"github.com/execproxy/execproxy/signer/keyfile"
	"github.com/execproxy/execproxy/signer/pkcs11"
	"github.com/execproxy/execproxy/signer/tpm"
)

// Open opens the key that the configuration names, with its certificate, which
// must be the key's and valid now.
func Open(ctx context.Context, c *config.Config, o Options) (*Key, error) {
	k, err := OpenBare(ctx, c, o)
	if err != nil {
		return nil, err
	}
	if err := k.Check(); err != nil {
		_ = k.Close()
		return nil, err
	}
	return k, nil
}

// OpenBare opens the key that the configuration names. It may have no certificate
// yet, or one that has expired.
func OpenBare(ctx context.Context, c *config.Config, o Options) (*Key, error) {
	if c.Key == "" && len(c.KeyPEM) > 0 {
		k, err := keyfile.Parse(c.KeyPEM, c.CertPEM)
		if err != nil {
			return nil, err
		}
		return &Key{private: newHandle(k), ref: config.KeyRef{Home: config.HomeFile}, chain: parsed(k), warnings: k.Warnings()}, nil
	}
	ref, err := c.KeyRef()
	if err != nil {
		return nil, err
	}
	private, err := open(ctx, c, ref, o)
	if err != nil {
		return nil, err
	}
	k := &Key{private: newHandle(private), ref: ref, cert: c.Cert}
	if w, ok := private.(interface{ Warnings() []string }); ok {
		k.warnings = w.Warnings()
	}
	if ref.URI != nil {
		if _, ok := ref.URI.PINValue(); ok {
			k.warnings = append(k.warnings, "the PIN stands in the key's URI (pin-value), where others may read it: write it to a file of mode 0600 and say --pin-source FILE")
		}
	}
	if err := k.load(); err != nil {
		_ = k.Close()
		return nil, err
	}
	return k, nil
}

func open(ctx context.Context, c *config.Config, ref config.KeyRef, o Options) (privateKey, error) {
	secret, err := o.secret(c, ref)
	if err != nil {
		return nil, err
	}
	switch ref.Home {
	case config.HomePKCS11:
		to := o.token(c, ref, secret)
		if c.Cert != "" { // of several keys with one label it tells which is meant
			to.Chain, _ = certificate.Load(c.Cert) // load tells what is wrong with it
		}
		k, err := pkcs11.Open(ctx, to)
		if to.Chain != nil && errors.Is(err, pkcs11.ErrMismatch) {
			to.Chain = nil
			k, err = pkcs11.Open(ctx, to)
		}
		if err != nil {
			return nil, err
		}
		return tokenKey{k}, nil
	case config.HomeTPM:
		if secret == nil {
			secret = o.unlocked(c)
		}
		k, err := tpm.Open(ctx, o.tpm(c, ref, secret))
		if err != nil {
			return nil, err
		}
		return tpmKey{k}, nil
	}
	return keyfile.LoadBare(ref.Path)
}

// load reads the chain from where it is kept. None is no error.
func (k *Key) load() error {
	if k.cert == "" {
		k.chain = parsed(k.private)
		return nil
	}
	chain, err := certificate.Load(k.cert)
	if k.ref.Path != "" && k.ref.Path != k.cert && (err != nil || !k.owns(chain)) {
		// A renewal with a new key puts key and chain into the key's file in one step,
		// and was cut short before it wrote the chain's own.
		if own, e := certificate.Load(k.ref.Path); e == nil && k.owns(own) {
			k.warnings = append(k.warnings, fmt.Sprintf("certificate file %s: not of this key: the one in the key's own file %s is used; copy it there", k.cert, k.ref.Path))
			k.chain = own
			return nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, certificate.ErrNoCertificate) {
		return nil
	}
	if err != nil {
		return err
	}
	k.chain = chain
	return nil
}

// owns reports a chain that was issued for the key.
func (k *Key) owns(chain []*x509.Certificate) bool {
	return len(chain) > 0 && certificate.Belongs(chain[0], k.Public())
}

// Check sees to it that the chain is the key's, and valid now.
func (k *Key) Check() error {
	if len(k.chain) == 0 {
		return fmt.Errorf("key %s: %w in %s: `execproxy key enroll` has the cluster issue one, or name its file with --cert", k.Location(), certificate.ErrNoCertificate, k.CertificateLocation())
	}
	if err := certificate.Check(k.chain, k.Public(), k.cert, time.Now()); err != nil {
		return err
	}
	k.warnings = append(k.warnings, certificate.Warnings(k.chain, k.cert)...)
	return nil
}

// With is k with another chain, which must be the key's and valid now.
func (k *Key) With(chain []*x509.Certificate) (*Key, error) {
	if k.private.closed.Load() {
		return nil, fmt.Errorf("key %s: it is closed", k.Location())
	}
	next := *k
	next.chain, next.warnings = chain, nil
	if err := next.Check(); err != nil {
		return nil, err
	}
	return &next, nil
}

// parsed is the chain that a home has itself. Homes hand out only what parses.
func parsed(k signer.Key) []*x509.Certificate {
	chain, _ := x509.ParseCertificates(bytes.Join(k.CertificateChain(), nil))
	return chain
}

func (o Options) token(c *config.Config, ref config.KeyRef, secret signer.Secret) pkcs11.Options {
	return pkcs11.Options{
		URI: ref.URI, Module: c.PKCS11Module, PIN: secret, Command: o.Module, Program: o.Program, Environ: o.Environ, Logger: o.Logger,
	}
}

func (o Options) tpm(c *config.Config, ref config.KeyRef, secret signer.Secret) tpm.Options {
	return tpm.Options{Handle: ref.Handle, File: ref.Path, Device: c.TPMDevice, Password: secret, Logger: o.Logger}
}

// tokenKey and tpmKey give the homes' figures one shape.
type tokenKey struct{ *pkcs11.Key }

func (k tokenKey) homeStats() Stats {
	s := k.Key.Stats()
	return Stats{Queued: s.Queued, Reopened: s.Reopened}
}

type tpmKey struct{ *tpm.Key }

func (k tpmKey) homeStats() Stats {
	s := k.Key.Stats()
	return Stats{Queued: s.Queued, Reopened: s.Reopened}
}
