//go:build linux

package integration

import (
	"context"
	"errors"
	"maps"
	"os"
	"sync"
	"testing"

	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

// need fails the test for an error, and skips it for a package that is not
// installed. In CI that fails, too.
func need(t *testing.T, err error) {
	t.Helper()
	var missing *token.MissingError
	if errors.As(err, &missing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	must(t, err)
}

// withoutCGO makes this home's execproxy the one that was built without cgo.
func (h *home) withoutCGO() {
	h.t.Helper()
	bin, err := static()
	must(h.t, err)
	must(h.t, os.Remove(h.bin))
	must(h.t, os.Link(bin, h.bin))
}

// softHSM gives this home a SoftHSM with a token.
func (h *home) softHSM(label, pin string) (*token.SoftHSM, *token.Token) {
	h.t.Helper()
	hsm, err := token.NewSoftHSM(h.dir)
	need(h.t, err)
	maps.Copy(h.env, hsm.Env())
	t, err := hsm.InitToken(h.t.Context(), label, pin)
	need(h.t, err)
	return hsm, t
}

// p11Kit puts a token behind p11-kit's server.
func (h *home) p11Kit(t *token.Token) *token.P11Kit {
	h.t.Helper()
	p, err := token.StartP11Kit(h.t.Context(), h.dir, t)
	need(h.t, err)
	h.t.Cleanup(p.Stop)
	maps.Copy(h.env, p.Env())
	return p
}

// swtpm gives this home a TPM.
func (h *home) swtpm() *token.SWTPM {
	h.t.Helper()
	s, err := token.StartSWTPM(h.t.Context(), h.dir)
	need(h.t, err)
	h.t.Cleanup(s.Stop)
	return s
}

var builtShim = sync.OnceValues(func() (string, error) { return token.BuildShim(context.Background(), suite.dir) })

// shim puts a module that counts and fails as told before another one.
func (h *home) shim(module string) *token.Shim {
	h.t.Helper()
	built, err := builtShim()
	need(h.t, err)
	s, err := token.NewShim(h.dir, built, module)
	need(h.t, err)
	return s
}
