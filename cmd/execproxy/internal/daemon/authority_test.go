package daemon

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Another authority is taken over when its file is whole, and until then the old one
// stays; so it is after a change that came while the proxy was starting.
func TestAuthorityIsFollowed(t *testing.T) {
	api, c, p := playground(t)
	file := filepath.Join(filepath.Dir(c.Key), "ca.pem")
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(file+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(api.CA())
	c.CertificateAuthority, c.CertificateAuthorityData = file, nil
	_, other, err := api.Issue("other") // any certificate beside the right one
	if err != nil {
		t.Fatal(err)
	}
	more := func(n int) []byte {
		out := api.CA()
		for range n {
			out = append(out[:len(out):len(out)], other...)
		}
		return out
	}
	r := begin(t, c, Options{
		ID: "x", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{p.Socket("x")},
		Ready: func(*Daemon) error { write(more(1)); return nil },
	})
	until := func(generation uint64) {
		t.Helper()
		for end := time.Now().Add(patience); r.d.figures().upstream.Generation != generation; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("generation %d, want %d", r.d.figures().upstream.Generation, generation)
			}
		}
	}
	until(2)
	write([]byte("no PEM"))
	write(other)
	until(3) // what could not be used between was not
}
