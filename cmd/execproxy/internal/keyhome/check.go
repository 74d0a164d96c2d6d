package keyhome

import (
	"context"
	"fmt"
	"os"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/signer/certificate"
	"github.com/execproxy/execproxy/signer/keyfile"
)

// CheckFiles looks at the files of the key that the configuration names: a key in
// a PEM file as Open does, of any other what is there without opening its home.
func CheckFiles(c *config.Config) error {
	if c.Key == "" && len(c.KeyPEM) > 0 {
		_, err := keyfile.Parse(c.KeyPEM, c.CertPEM)
		return err
	}
	ref, err := c.KeyRef()
	if err != nil {
		return err
	}
	if !ref.Hardware() {
		k, err := keyfile.Load(ref.Path, c.Cert)
		if err == nil {
			_ = k.Close()
		}
		return err
	}
	if ref.Path != "" {
		if _, err := os.Stat(ref.Path); err != nil {
			return &config.FieldError{Field: "key", Err: fmt.Errorf("%w; check the path, or make it with `execproxy key create`", err)}
		}
	}
	if c.Cert != "" {
		_, err := certificate.Load(c.Cert)
		return err
	}
	return nil
}

// Handover is what unlocks the key, where only this process can be told it: a
// proxy has no terminal, none of our descriptors and no credentials of systemd.
// It is nil where the proxy can read it by itself.
func Handover(ctx context.Context, c *config.Config, o Options) ([]byte, error) {
	ref, err := c.KeyRef()
	if err != nil {
		return nil, err
	}
	s, err := o.source(c, ref)
	if s == nil || err != nil {
		return nil, err
	}
	defer s.Close()
	value, _, err := s.Handover(ctx)
	return value, err
}
