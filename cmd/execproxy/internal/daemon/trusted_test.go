package daemon

import (
	"slices"
	"strings"
	"testing"
)

func TestTrustedAuthority(t *testing.T) {
	p, other := Places{State: t.TempDir() + "/state"}, Places{State: t.TempDir() + "/state"}
	s, err := newSession(p)
	if err != nil {
		t.Fatal(err)
	}
	own, err := LoopbackAuthority(p)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := LoopbackAuthority(other)
	if err != nil {
		t.Fatal(err)
	}
	for name, pinned := range map[string][]byte{"own": own, "own among others": slices.Concat(foreign, own), "not known": nil} {
		if err := s.trusted(pinned); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, pinned := range map[string][]byte{"foreign": foreign, "no PEM": []byte("x")} {
		if err := s.trusted(pinned); err == nil || !strings.Contains(err.Error(), "execproxy kubeconfig") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A client may trust a whole bundle, which its plugin passes on.
func TestLargeBundle(t *testing.T) {
	_, c, p := playground(t)
	path := p.Socket("bundle")
	r := begin(t, c, Options{ID: "bundle", Life: lifeIdle, NoDrain: true, Places: p, Sockets: []string{path}, Loopback: []string{"127.0.0.1:0"}})
	own, err := LoopbackAuthority(p)
	if err != nil {
		t.Fatal(err)
	}
	ask := Ask{Loopback: r.d.Loopback(), Authority: append([]byte(strings.Repeat("# a comment\n", 20_000)), own...)}
	if _, err := Answer(t.Context(), path, ask); err != nil {
		t.Error(err)
	}
	if w := r.d.status().Warnings; len(w) > 0 {
		t.Errorf("warned of a bundle that has our own in it: %q", w)
	}
}
