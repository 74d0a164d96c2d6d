package keyhome

import (
	"context"
	"sync"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/pin"
	"github.com/execproxy/execproxy/signer"
)

// Kept is what unlocks the keys of one proxy: who was asked once is not asked
// again when the next key is made.
type Kept struct {
	mu     sync.Mutex
	source *pin.Source
}

// Ready asks for what unlocks the key where somebody has to be asked, without the
// time limits that homes have.
func (o Options) Ready(ctx context.Context, c *config.Config) error {
	if c.Key == "" {
		return nil
	}
	ref, err := c.KeyRef()
	if err != nil {
		return err
	}
	s, err := o.source(c, ref)
	if s == nil || err != nil {
		return err
	}
	return s.Ready(ctx)
}

// secret is what unlocks the key, nil where nothing is said of it.
func (o Options) secret(c *config.Config, ref config.KeyRef) (signer.Secret, error) {
	s, err := o.source(c, ref)
	if s == nil || err != nil {
		return nil, err // a nil interface, not one that holds nil
	}
	return s, nil
}

// source is what is said of it, the same each time where it is kept.
func (o Options) source(c *config.Config, ref config.KeyRef) (*pin.Source, error) {
	if o.Kept == nil {
		return o.newSource(c, ref)
	}
	o.Kept.mu.Lock()
	defer o.Kept.mu.Unlock()
	if o.Kept.source == nil {
		s, err := o.newSource(c, ref)
		if err != nil {
			return nil, err
		}
		o.Kept.source = s
	}
	return o.Kept.source, nil
}

func (o Options) newSource(c *config.Config, ref config.KeyRef) (*pin.Source, error) {
	if !ref.Hardware() {
		return nil, nil
	}
	po := pin.Options{
		What: what(ref), Getenv: o.Getenv, State: o.State, Value: o.PIN, Terminal: o.Ask, Detached: o.Detached, Logger: o.Logger,
	}
	said := c.PINSource
	if said == "" && ref.URI != nil {
		// The same kind in the plugin and in the proxy that it hands the PIN to, or one
		// would not know what the other was refused.
		if v, ok := ref.URI.PINValue(); ok {
			if po.Value = []byte(v); len(o.PIN) > 0 {
				po.Value = o.PIN
			}
			return pin.New(pin.Spec{Kind: pin.Value}, po), nil
		}
		said = ref.URI.PINSource()
		if said == "" && o.Ask && pin.HasTerminal() {
			said = "prompt" // tokens want a PIN, almost all of them
		}
	}
	if said == "" {
		if len(o.PIN) > 0 { // the plugin had nobody else to ask but the user
			return pin.New(pin.Spec{Kind: pin.Prompt}, po), nil
		}
		return nil, nil
	}
	spec, err := pin.Parse(said)
	if err != nil {
		return nil, &config.FieldError{Field: "pin-source", Err: err}
	}
	return pin.New(spec, po), nil
}

// what names the thing that is locked, for a prompt. It is the same for all keys of
// a token: a PIN that was refused is remembered by it.
func what(ref config.KeyRef) string {
	if ref.Home == config.HomePKCS11 {
		if t := ref.URI.Token(); t != "" {
			return "PIN of token " + t
		}
		return "PIN of the token"
	}
	return "password of the TPM's key"
}
