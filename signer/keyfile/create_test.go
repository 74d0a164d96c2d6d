package keyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/signertest"
)

// TestCreate: what was made is a private file, opens again, and is a key as all others are.
func TestCreate(t *testing.T) {
	for _, a := range signer.Algorithms() {
		path := filepath.Join(t.TempDir(), "new.key")
		k, err := Create(path, a)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		must(t, err)
		if runtime.GOOS != "windows" && info.Mode() != 0o600 {
			t.Errorf("%s: mode %v", a, info.Mode())
		}
		again, err := LoadBare(path)
		must(t, err)
		if !again.Equal(k) || len(again.CertificateChain()) != 0 || again.Leaf() != nil || len(again.Warnings()) != 0 {
			t.Errorf("%s: loaded %v with %d certificates, warnings %q", a, again, len(again.CertificateChain()), again.Warnings())
		}
		if text := fmt.Sprintf("%+v", again); !strings.HasSuffix(text, "key without certificate") {
			t.Errorf("%s: prints %q", a, text)
		}
		if err := again.Watch(t.Context(), nil); !errors.Is(err, ErrNoFiles) {
			t.Errorf("%s: Watch without a chain: %v", a, err)
		}
		if a == signer.RSA3072 {
			continue // slow, and as RSA of 2048 bits
		}
		signertest.Run(t, signertest.Home{Name: string(a), Open: func(t *testing.T) signertest.Key {
			k, err := LoadBare(path)
			must(t, err)
			return k
		}})
	}
}

// TestCreateOverwritesNothing: neither a file, nor through a link.
func TestCreateOverwritesNothing(t *testing.T) {
	dir := t.TempDir()
	taken := write(t, filepath.Join(dir, "taken"), []byte("precious"))
	paths := []string{taken, dir}
	if runtime.GOOS != "windows" {
		link := filepath.Join(dir, "link")
		must(t, os.Symlink(filepath.Join(dir, "absent"), link))
		paths = append(paths, link)
	}
	for _, path := range paths {
		_, err := Create(path, signer.ECP256)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrExists) || !errors.Is(err, fs.ErrExist) || e.Cure == "" {
			t.Errorf("%s: got %v", path, err)
		}
	}
	if text, err := os.ReadFile(taken); err != nil || string(text) != "precious" {
		t.Errorf("the file holds %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "absent")); err == nil {
		t.Error("a key was written through a link")
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		path string
		a    signer.Algorithm
		want string
	}{
		{"", signer.ECP256, "--key"},
		{dir + "/absent/key", signer.ECP256, "cannot be written: file does not exist: make its directory " + dir + "/absent"},
		{dir + "/key", "dsa", `"dsa" is no kind of key`},
	} {
		k, err := Create(tc.path, tc.a)
		if k != nil || err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, %s: got %v", tc.path, tc.a, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestLoadBareRefuses(t *testing.T) {
	dir := t.TempDir()
	_, cert := pair(t, "jane")
	for path, want := range map[string]error{
		"": ErrMissing, dir + "/absent": ErrMissing, write(t, filepath.Join(dir, "cert"), cert): ErrNoKey,
	} {
		var e *Error
		if _, err := LoadBare(path); !errors.Is(err, want) || !errors.As(err, &e) || e.Path != path {
			t.Errorf("%q: got %v, want %v", path, err, want)
		}
	}
	key, _ := pair(t, "jane")
	path := write(t, filepath.Join(dir, "open.key"), key)
	must(t, os.Chmod(path, 0o644))
	k, err := LoadBare(path)
	must(t, err)
	if runtime.GOOS != "windows" && (len(k.Warnings()) != 1 || !strings.Contains(k.Warnings()[0], "chmod 600")) {
		t.Errorf("warnings %q", k.Warnings())
	}
}
