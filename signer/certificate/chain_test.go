package certificate

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	key := newKey(t)
	leaf, other := issue(t, key, nil), issue(t, newKey(t), nil)
	path := filepath.Join(t.TempDir(), "chain")
	put(t, path, append([]byte("a comment\n"), append(PEM(raw(leaf)), append(privatePEM(t, key), PEM(raw(other))...)...)...), 0o600)
	chain, err := Load(path)
	if err != nil || len(chain) != 2 || !chain[0].Equal(leaf) || !chain[1].Equal(other) {
		t.Fatalf("got %d certificates, %v", len(chain), err)
	}
	if err := Check(chain, key.Public(), path, time.Now()); err != nil {
		t.Error(err)
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	good := PEM(raw(issue(t, newKey(t), nil)))
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		put(t, path, text, 0o600)
		return path
	}
	for _, tc := range []struct {
		path string
		want error
		text string
	}{
		{dir + "/absent", ErrMissing, "check the path"},
		{dir, ErrNotRegular, "PEM file"},
		{file("large", make([]byte, MaxFile+1)), ErrTooLarge, ""},
		{file("empty", nil), ErrNoCertificate, "leaf first"},
		{file("key", privatePEM(t, newKey(t))), ErrNoCertificate, "with --cert"},
		{file("cut", append(good, good[:len(good)-30]...)), ErrMalformed, "1 of its 2 blocks"},
		{file("bad", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), ErrMalformed, "number 1"},
		{file("der", []byte{0x30, 0x82, 1, 1}), ErrMalformed, "-inform DER"},
	} {
		chain, err := Load(tc.path)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, tc.want) || !e.HasCure() || chain != nil ||
			!strings.HasPrefix(err.Error(), "certificate file "+tc.path+": ") || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: got %v, want %v, %s", tc.path, err, tc.want, tc.text)
		}
		if tc.want == ErrMissing && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v is not fs.ErrNotExist", err)
		}
	}
}

func TestCheck(t *testing.T) {
	now := time.Now()
	key, other := newKey(t), newKey(t)
	leaf, stranger := issue(t, key, nil), issue(t, other, nil)
	old := issue(t, key, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) })
	early := issue(t, key, func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) })
	for _, tc := range []struct {
		chain []*x509.Certificate
		want  error
		text  string
	}{
		{[]*x509.Certificate{leaf, stranger}, nil, ""},
		{nil, ErrNoCertificate, "file PATH: holds no certificate"},
		{[]*x509.Certificate{stranger}, ErrMismatch, "issued for this key"},
		{[]*x509.Certificate{stranger, leaf}, ErrMismatch, "the key's is number 2: put it first"},
		{[]*x509.Certificate{old}, ErrExpired, "on " + old.NotAfter.UTC().Format(time.RFC3339) + ": have a new one issued, `execproxy key enroll`"},
		{[]*x509.Certificate{early}, ErrNotYetValid, "clock"},
	} {
		err := Check(tc.chain, key.Public(), "PATH", now)
		if tc.want == nil && err != nil || tc.want != nil && (!errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text)) {
			t.Errorf("got %v, want %v, %s", err, tc.want, tc.text)
		}
	}
	if err := Check([]*x509.Certificate{leaf}, nil, "", now); !errors.Is(err, ErrMismatch) {
		t.Errorf("no key: %v", err)
	}
	if err := Check([]*x509.Certificate{leaf}, key.Public(), "", leaf.NotAfter.Add(time.Second)); !errors.Is(err, ErrExpired) || strings.Contains(err.Error(), "file") {
		t.Errorf("at a given time, without a file: %v", err)
	}
}

func TestWarnings(t *testing.T) {
	key := newKey(t)
	server := issue(t, key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	any := issue(t, key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })
	none := issue(t, key, func(c *x509.Certificate) { c.ExtKeyUsage = nil })
	for _, tc := range []struct {
		chain []*x509.Certificate
		want  string
	}{
		{nil, "[]"},
		{[]*x509.Certificate{issue(t, key, nil), server}, "[]"},
		{[]*x509.Certificate{any}, "[]"},
		{[]*x509.Certificate{none}, "[]"},
		{[]*x509.Certificate{server}, "[certificate file PATH: not made for client authentication: servers refuse it: have one issued with that extended key usage]"},
	} {
		if got := fmt.Sprint(Warnings(tc.chain, "PATH")); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skip("this Go makes no small RSA keys")
	}
	if got := Warnings([]*x509.Certificate{issue(t, small, nil)}, ""); len(got) != 1 || !strings.Contains(got[0], "1024 bits") {
		t.Errorf("a small key: %q", got)
	}
}

// FuzzParse: whatever a text is, it is a chain whose PEM is read as the same one, or an *Error
// of one line.
func FuzzParse(f *testing.F) {
	good := PEM(raw(issue(f, newKey(f), nil), issue(f, newKey(f), nil)))
	f.Add(good)
	f.Add(good[:len(good)-10])
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"))
	f.Add([]byte{0x30})
	f.Fuzz(func(t *testing.T, text []byte) {
		chain, err := Parse("", text)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %T %v", err, err)
			}
			return
		}
		again, err := Parse("", PEM(raw(chain...)))
		if err != nil || len(again) != len(chain) {
			t.Fatalf("%d certificates, then %d, %v", len(chain), len(again), err)
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	path := filepath.Join(b.TempDir(), "chain")
	must(b, os.WriteFile(path, PEM(raw(issue(b, newKey(b), nil))), 0o600))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load(path); err != nil {
			b.Fatal(err)
		}
	}
}
