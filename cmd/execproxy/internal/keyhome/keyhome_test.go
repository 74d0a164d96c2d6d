package keyhome

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/certificate"
)

// authority issues certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, next: 1}
	a.cert = &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true}
	return a
}

func (a *authority) issue(t *testing.T, public crypto.PublicKey, user string) []*x509.Certificate {
	t.Helper()
	a.next++
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: user},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{c}
}

// keyIn is the configuration of a key in a file; cert may be "".
func keyIn(t *testing.T, key, cert string) *config.Config {
	t.Helper()
	c := &config.Config{Identity: config.Identity{Auth: config.AuthMTLS, Key: key, Cert: cert, Renew: config.RenewNewKey}}
	if err := c.CompleteKey(); err != nil {
		t.Fatal(err)
	}
	return c
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A key's whole life in files: one that holds both, and one for each.
func TestLifeInFiles(t *testing.T) {
	for name, cert := range map[string]string{"one file": "", "two files": "me.crt"} {
		t.Run(name, func(t *testing.T) {
			dir, ctx, a := t.TempDir(), t.Context(), newAuthority(t)
			key := filepath.Join(dir, "me.key")
			if cert != "" {
				cert = filepath.Join(dir, cert)
			}
			c := keyIn(t, key, cert)
			if _, err := OpenBare(ctx, c, Options{}); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("a key that was not made: %v", err)
			}
			k, err := Create(ctx, c, Options{}, signer.ECP384)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Create(ctx, c, Options{}, signer.ECP256); err == nil {
				t.Fatal("a second key in the place of the first")
			}
			if _, err := Open(ctx, c, Options{}); !errors.Is(err, certificate.ErrNoCertificate) || !strings.Contains(err.Error(), "execproxy key enroll") {
				t.Errorf("a key without certificate: %v", err)
			}
			if k.Leaf() != nil || k.Home() != config.HomeFile || k.Location() != key || k.Kind() != "ECDSA P-384" {
				t.Errorf("made %v: %s at %s", k, k.Home(), k.Location())
			}
			if _, err := k.Store(ctx, a.issue(t, a.key.Public(), "mallory")); !errors.Is(err, certificate.ErrMismatch) {
				t.Errorf("somebody else's certificate: %v", err)
			}
			stored, err := k.Store(ctx, a.issue(t, k.Public(), "jane"))
			if err != nil {
				t.Fatal(err)
			}
			again, err := Open(ctx, c, Options{})
			if err != nil || !again.equal(stored) || len(again.Warnings()) > 0 {
				t.Fatalf("opened %v, %v with warnings %q; want %v", again, err, again.Warnings(), stored)
			}

			// The next key waits beside the first until it has its certificate.
			next, err := again.Next(ctx, c, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if next.Kind() != "ECDSA P-384" {
				t.Errorf("the next key is %s", next.Kind())
			}
			adopted, err := again.Next(ctx, c, Options{})
			if err != nil || !next.Public().(*ecdsa.PublicKey).Equal(adopted.Public()) {
				t.Fatalf("another next key, %v; want the one that waits", err)
			}
			if now, err := Open(ctx, c, Options{}); err != nil || !now.equal(stored) {
				t.Errorf("while the next key waits: %v, %v; want %v", now, err, stored)
			}
			replaced, err := again.Replace(ctx, adopted, a.issue(t, adopted.Public(), "jane"))
			if err != nil {
				t.Fatal(err)
			}
			last, err := Open(ctx, c, Options{})
			if err != nil || !last.equal(replaced) || last.Location() != key || replaced.Location() != key {
				t.Fatalf("opened %v at %s, %v; want %v", last, last.Location(), err, replaced)
			}
			if got, want := files(t, dir), map[bool]int{true: 1, false: 2}[cert == ""]; len(got) != want {
				t.Errorf("left in the directory: %q", got)
			}
			info, err := os.Stat(key)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the key's file has mode %v, %v", info.Mode(), err)
			}
			if err := again.Forget(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// Of the same key only the chain may change under a handle.
func TestWith(t *testing.T) {
	dir, a := t.TempDir(), newAuthority(t)
	c := keyIn(t, filepath.Join(dir, "k"), "")
	k, err := Create(t.Context(), c, Options{}, signer.ECP256)
	if err != nil {
		t.Fatal(err)
	}
	first, err := k.With(a.issue(t, k.Public(), "jane"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.With(a.issue(t, k.Public(), "jane"))
	if err != nil || second.equal(first) || !second.Shares(first) || !first.Shares(k) {
		t.Errorf("second %v, %v", second, err)
	}
	if _, err := k.With(nil); !errors.Is(err, certificate.ErrNoCertificate) {
		t.Errorf("without a chain: %v", err)
	}
}

// Which of the places that may say where the PIN is wins, and who may be asked.
func TestSource(t *testing.T) {
	pinFile := filepath.Join(t.TempDir(), "pin")
	if err := os.WriteFile(pinFile, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, key, said string
		given           string
		want            string // the PIN; "": there is no source
	}{
		{"nothing said", "pkcs11:token=a;object=b", "", "", ""},
		{"in the URI", "pkcs11:token=a;object=b?pin-value=from-uri", "", "", "from-uri"},
		{"named by the URI", "pkcs11:token=a;object=b?pin-source=" + pinFile, "", "", "from-file"},
		{"the option is stronger", "pkcs11:token=a;object=b?pin-source=/no/such", pinFile, "", "from-file"},
		{"handed over", "pkcs11:token=a;object=b", "", "typed", "typed"},
		{"handed over for a prompt", "pkcs11:token=a;object=b", "prompt", "typed", "typed"},
		{"a TPM's key without password", "tpm:/k", "", "", ""},
		{"a TPM's key", "tpm:/k", pinFile, "", "from-file"},
		{"a file", "/k", "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &config.Config{Identity: config.Identity{Auth: config.AuthMTLS, Key: tc.key, PINSource: tc.said}}
			ref, err := c.KeyRef()
			if err != nil {
				t.Fatal(err)
			}
			o := Options{State: t.TempDir(), Detached: true}
			if tc.given != "" {
				o.PIN = []byte(tc.given)
			}
			s, err := o.secret(c, ref)
			if err != nil {
				t.Fatal(err)
			}
			if s == nil {
				if tc.want != "" {
					t.Error("no source")
				}
				return
			}
			got, err := s.Secret(t.Context())
			if err != nil || string(got) != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

// What a proxy in the background reads by itself is not handed over.
func TestHandover(t *testing.T) {
	pinFile := filepath.Join(t.TempDir(), "pin")
	if err := os.WriteFile(pinFile, []byte("1234\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p"), []byte("cred\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for said, want := range map[string]string{pinFile: "", "credential:p": "cred"} {
		c := &config.Config{Identity: config.Identity{Auth: config.AuthMTLS, Key: "pkcs11:token=a;object=b", PINSource: said}}
		o := Options{State: t.TempDir(), Getenv: func(name string) string {
			if name == "CREDENTIALS_DIRECTORY" {
				return dir
			}
			return ""
		}}
		got, err := Handover(t.Context(), c, o)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v; want %q", said, got, err, want)
		}
	}
}

// The same source for all keys of a proxy: who was asked is not asked again.
func TestKept(t *testing.T) {
	c := &config.Config{Identity: config.Identity{Auth: config.AuthMTLS, Key: "pkcs11:token=a;object=b?pin-value=1"}}
	ref, err := c.KeyRef()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Kept: &Kept{}}
	first, err := o.source(c, ref)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := o.source(c, ref); err != nil || second != first {
		t.Errorf("another source, %v", err)
	}
}

// What a kill between two steps of a renewal with a new key leaves behind works.
func TestReplaceCutShort(t *testing.T) {
	dir, ctx, a := t.TempDir(), t.Context(), newAuthority(t)
	key, cert := filepath.Join(dir, "me.key"), filepath.Join(dir, "certs", "me.crt")
	if err := os.Mkdir(filepath.Dir(cert), 0o700); err != nil {
		t.Fatal(err)
	}
	c := keyIn(t, key, cert)
	k, err := Create(ctx, c, Options{}, signer.ECP256)
	if err != nil {
		t.Fatal(err)
	}
	first, err := k.Store(ctx, a.issue(t, k.Public(), "jane"))
	if err != nil {
		t.Fatal(err)
	}
	next, err := first.Next(ctx, c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	// The chain's file cannot be written: somebody has put a directory in its place.
	if err := os.Rename(cert, cert+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(cert, 0o700); err != nil {
		t.Fatal(err)
	}
	replaced, err := first.Replace(ctx, next, a.issue(t, next.Public(), "jane"))
	if err == nil || replaced == nil || replaced.Leaf().Subject.CommonName != "jane" {
		t.Fatalf("got %v, %v; want the key, to be used, and why it could not be stored", replaced, err)
	}
	if err := errors.Join(os.Remove(cert), os.Rename(cert+".old", cert)); err != nil {
		t.Fatal(err)
	}
	// Now it is the old key's certificate beside the new key.
	again, err := Open(ctx, c, Options{})
	if err != nil || !again.equal(replaced) {
		t.Fatalf("the next start: %v, %v; want %v", again, err, replaced)
	}
	if w := strings.Join(again.Warnings(), " "); !strings.Contains(w, cert) {
		t.Errorf("warnings %q do not name %s", w, cert)
	}
}

// A closed handle never comes into use again.
func TestClosed(t *testing.T) {
	a, c := newAuthority(t), keyIn(t, filepath.Join(t.TempDir(), "k"), "")
	k, err := Create(t.Context(), c, Options{}, signer.ECP256)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := k.With(a.issue(t, k.Public(), "jane")); err == nil {
		t.Error("a chain for a closed key")
	}
}

// A PIN of the URI that was refused is known to be, by the plugin and by the proxy
// that it hands the PIN to.
func TestWrongPINOfURI(t *testing.T) {
	state := t.TempDir()
	c := &config.Config{Identity: config.Identity{Auth: config.AuthMTLS, Key: "pkcs11:token=a;object=b?pin-value=9999"}}
	ref, err := c.KeyRef()
	if err != nil {
		t.Fatal(err)
	}
	given, err := Handover(t.Context(), c, Options{State: state})
	if err != nil || string(given) != "9999" {
		t.Fatalf("handed over %q, %v", given, err)
	}
	proxy, err := Options{State: state, PIN: given, Detached: true}.source(c, ref)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proxy.Secret(t.Context()); err != nil || proxy.Human() {
		t.Fatalf("%v; a human: %v", err, proxy.Human())
	}
	proxy.Refused()
	if got, err := Handover(t.Context(), c, Options{State: state}); err == nil {
		t.Errorf("the next plugin hands over %q", got)
	}
}
