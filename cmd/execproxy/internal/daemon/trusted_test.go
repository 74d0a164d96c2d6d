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
