//go:build linux

package integration

import (
	"net"
	"strings"
	"testing"
	"time"
)

// TestStatusAndStop: what runs is shown; stop ends it and waits until it is gone.
func TestStatusAndStop(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	if s := h.status(); len(s) != 0 {
		t.Fatalf("nothing runs, status shows %+v", s)
	}
	p := h.jane(u)
	d := h.open(p)
	other := p
	other.lock = h.lock()
	cert, key := h.user("bob")
	other.config = mtls(cert, key)
	e := h.open(other)
	if d.socket(t) == e.socket(t) {
		t.Fatal("two identities share one proxy")
	}
	list := h.status()
	if len(list) != 2 {
		t.Fatalf("status shows %+v", list)
	}
	get(t, e.client(t, u.url), u.url+"/as-bob")
	if s := u.last(t, "/as-bob"); s.user != "bob" {
		t.Errorf("bob's request came from %s", s.user)
	}
	for _, s := range list {
		if s.PID == 0 || s.Server != u.url || s.Auth != "mtls" || s.ID == "" || s.NotAfter.IsZero() {
			t.Errorf("incomplete: %+v", s)
		}
		if !strings.Contains(s.Identity, "jane") && !strings.Contains(s.Identity, "bob") {
			t.Errorf("identity %q", s.Identity)
		}
	}
	id := strings.TrimSuffix(strings.TrimPrefix(d.socket(t), h.runtime("")+"/"), ".sock")
	h.execproxy("stop", id).ok(t)
	if _, err := net.Dial("unix", d.socket(t)); err == nil {
		t.Error("it accepts after stop")
	}
	if left := h.status(); len(left) != 1 || left[0].ID == id {
		t.Errorf("after stop %s: %+v", id, left)
	}
	if r := h.execproxy("stop", "0123456789abcdef"); r.code != 1 || !strings.Contains(r.stderr, "0123456789abcdef") {
		t.Errorf("stop of what does not run: %s", r)
	}
	h.execproxy("stop", "--all").ok(t)
	if left := processes(h.dir); len(left) > 0 {
		t.Errorf("stop --all came back before these were gone: %v", left)
	}
	h.gone(e.socket(t), time.Second)
}

// TestDemo: the binary shows itself, with nothing else.
func TestDemo(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.env["PATH"] = "/nowhere"
	r := h.execproxy("demo")
	r.ok(t)
	if r.took > time.Minute || !strings.Contains(r.stdout, "refused") {
		t.Errorf("the demo must show a refused signature, in under a minute: %s", r)
	}
	h.gone("", time.Second)
}
