package keyhome

import (
	"context"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/signer/certificate"
	"github.com/execproxy/execproxy/signer/watch"
)

// Watch calls changed when the files of the key in use, the key's and the chain's,
// hold something else than current returns. It blocks until ctx ends, and returns
// nil then; what it calls changed with is as [watch.Run] says. A key without files
// returns at once.
func Watch(ctx context.Context, c *config.Config, o Options, current func() *Key, changed func(*Key, error)) error {
	k := current()
	var paths []string
	for _, p := range []string{k.ref.Path, k.cert} {
		if p != "" && (len(paths) == 0 || paths[0] != p) {
			paths = append(paths, p)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return watch.Run(ctx, watch.Options[*Key]{
		Paths: paths, First: k,
		Load:  func() (*Key, error) { return current().Again(ctx, c, o) },
		Equal: func(loaded, _ *Key) bool { return loaded.equal(current()) },
		Drop: func(k *Key) {
			if !k.Shares(current()) {
				_ = k.Close()
			}
		},
		Changed: changed,
	})
}

// Again is what is in the home now: k's own handle with the chain that is kept
// there where that is still the key's, which costs no PIN and no signature, and
// otherwise the key opened anew.
func (k *Key) Again(ctx context.Context, c *config.Config, o Options) (*Key, error) {
	if k.ref.Hardware() && k.cert != "" && !k.private.closed.Load() {
		chain, err := certificate.Load(k.cert)
		if err != nil {
			return nil, err
		}
		if k.owns(chain) {
			return k.With(chain)
		}
	}
	return Open(ctx, c, o)
}

// equal reports the same key with the same chain.
func (k *Key) equal(other *Key) bool {
	if len(k.chain) != len(other.chain) {
		return false
	}
	for i := range k.chain {
		if !k.chain[i].Equal(other.chain[i]) {
			return false
		}
	}
	// A chain that passed the check is of one key only.
	return true
}
