package token

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// TestSignFields: what is at hand is sent at once; whatever would have to be got, or waited
// for, is left to SignRequest.
func TestSignFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mint{life: 10 * time.Minute}
		c := New(m, Options{})
		s := NewSigner(c)
		var out signer.Fields
		sign := func(want string) {
			t.Helper()
			before := m.calls.Load()
			out.Reset()
			ok, err := s.SignFields(&signer.Request{}, nil, &out)
			got := ""
			for _, f := range out.List() {
				got += f.Name + ": " + f.Value
			}
			if err != nil || ok != (want != "") || got != want {
				t.Errorf("%t, %v, %q; want %q", ok, err, got, want)
			}
			if m.calls.Load() != before {
				t.Error("it made an attempt")
			}
		}
		sign("") // nothing yet
		want(t, c, "t1")
		sign("authorization: Bearer t1")
		if n := testing.AllocsPerRun(100, func() { out.Reset(); _, _ = s.SignFields(&signer.Request{}, nil, &out) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if out.Transient(0) {
			t.Error("the token is taken for a value of one request")
		}
		time.Sleep(9*time.Minute + 30*time.Second)
		sign("") // nobody runs the cache, so who asks refreshes
		want(t, c, "t2")
		sign("authorization: Bearer t2")
		if !s.ObserveResponse(401, nil, time.Now().Add(time.Second)) {
			t.Fatal("not again after a 401")
		}
		sign("") // refused: another one first
		want(t, c, "t3")
		sign("authorization: Bearer t3")
		m.fail(errors.New("down"))
		time.Sleep(time.Hour)
		sign("") // expired
		if _, err := s.SignRequest(t.Context(), &signer.Request{}); err == nil {
			t.Error("an expired token is sent")
		}
		pair := New(SourceFunc(func(context.Context) (*Credential, error) {
			return &Credential{CertificatePEM: []byte("c"), KeyPEM: []byte("k")}, nil
		}), Options{})
		if _, err := pair.Credential(t.Context()); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		if ok, err := NewSigner(pair).SignFields(&signer.Request{}, nil, &out); !ok || err != nil || len(out.List()) != 0 {
			t.Errorf("a certificate in a header: %t, %v, %v", ok, err, &out)
		}
	})
}

func TestSignerPrinted(t *testing.T) {
	c := New(SourceFunc(func(context.Context) (*Credential, error) { return &Credential{Token: "canary"}, nil }), Options{})
	s := NewSigner(c)
	if _, err := s.SignRequest(t.Context(), &signer.Request{}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		if got := fmt.Sprintf(verb, s); strings.Contains(got, "canary") || strings.Contains(got, "63616e617279") {
			t.Errorf("%s prints %s", verb, got)
		}
	}
}
