package header

import (
	"net/http"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

var _ signer.FieldSigner = (*Signer)(nil)

// TestSignFields: the same fields as SignRequest, and nothing where a file has a say.
func TestSignFields(t *testing.T) {
	s, err := New([]string{"x-tenant=blue", "X-Tenant=green", "authorization=Bearer " + canary})
	if err != nil {
		t.Fatal(err)
	}
	var out signer.Fields
	for range 2 {
		out.Reset()
		if ok, err := s.SignFields(&signer.Request{}, nil, &out); !ok || err != nil {
			t.Fatal(ok, err)
		}
		h := http.Header{}
		for i, f := range out.List() {
			h.Add(f.Name, f.Value)
			if out.Transient(i) {
				t.Errorf("%s is taken for a value of one request", f.Name)
			}
		}
		if want := fields(t, s); !reflect.DeepEqual(h, want) || out.List()[2].Name != "authorization" {
			t.Errorf("got %v, want %v", h, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { out.Reset(); _, _ = s.SignFields(&signer.Request{}, nil, &out) }); n != 0 {
		t.Errorf("%v allocations", n)
	}

	path := filepath.Join(t.TempDir(), "token")
	write(t, path, canary)
	if s, err = New([]string{"X-Tenant=blue", "X-A=@" + path}); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if ok, err := s.SignFields(&signer.Request{}, nil, &out); ok || err != nil || len(out.List()) != 0 {
		t.Errorf("with a file: %t, %v, %v", ok, err, &out)
	}
}
