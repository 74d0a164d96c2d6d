package certificate

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// alone fails when anything but the named files lies in dir.
func alone(t *testing.T, dir string, names ...string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range all {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("the directory holds %q, want %q", got, names)
	}
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Mode()
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tls.crt")
	one, two := issue(t, newKey(t), nil), issue(t, newKey(t), nil)
	must(t, Replace(path, raw(one, two)))
	if mode := modeOf(t, path); runtime.GOOS != "windows" && mode != 0o644 {
		t.Errorf("a new file has mode %v", mode)
	}
	must(t, os.Chmod(path, 0o440))
	must(t, Replace(path, raw(two)))
	text, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(text, PEM(raw(two))) {
		t.Errorf("the file holds %s", text)
	}
	if mode := modeOf(t, path); runtime.GOOS != "windows" && mode != 0o440 {
		t.Errorf("mode %v was not kept", mode)
	}
	alone(t, dir, "tls.crt")
}

// TestReplaceKeepsTheKey: a key in the same file must never be lost.
func TestReplaceKeepsTheKey(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "both.pem")
	key := newKey(t)
	one, two := issue(t, key, nil), issue(t, key, nil)
	private := privatePEM(t, key)
	parameters := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Headers: map[string]string{"X-Y": "z"}, Bytes: []byte{6, 1, 1}})
	put(t, path, bytes.Join([][]byte{[]byte("a comment\n"), parameters, PEM(raw(one)), private}, nil), 0o600)
	must(t, Replace(path, raw(two, one)))
	text, err := os.ReadFile(path)
	must(t, err)
	if want := bytes.Join([][]byte{parameters, private, PEM(raw(two, one))}, nil); !bytes.Equal(text, want) {
		t.Errorf("the file holds\n%s\nwant\n%s", text, want)
	}
	if mode := modeOf(t, path); runtime.GOOS != "windows" && mode != 0o600 {
		t.Errorf("mode %v: the key is readable by others", mode)
	}
}

func TestReplaceFollowsLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege")
	}
	dir, elsewhere := t.TempDir(), t.TempDir()
	one := issue(t, newKey(t), nil)
	link := filepath.Join(dir, "link")
	must(t, os.Symlink("second", link))
	must(t, os.Symlink(filepath.Join(elsewhere, "tls.crt"), filepath.Join(dir, "second")))
	for range 2 { // the target is not there yet, and is there
		must(t, Replace(link, raw(one)))
		chain, err := Load(filepath.Join(elsewhere, "tls.crt"))
		if err != nil || !chain[0].Equal(one) {
			t.Errorf("the target holds %v, %v", chain, err)
		}
		if _, err := os.Readlink(link); err != nil {
			t.Errorf("the link is gone: %v", err)
		}
	}
	alone(t, dir, "link", "second")
	alone(t, elsewhere, "tls.crt")
}

func TestReplaceRefuses(t *testing.T) {
	dir := t.TempDir()
	good := raw(issue(t, newKey(t), nil))
	private := privatePEM(t, newKey(t))
	for _, tc := range []struct {
		name string
		text string // of the file, which must stay
		want error
		say  string
	}{
		{"cut.key", string(private[:len(private)-30]), ErrMalformed, "cut short"},
		{"cut.both", string(private[:len(private)-30]) + string(PEM(good)), ErrMalformed, "cut short"},
		{"bashrc", "export PATH\n", ErrMalformed, "would be overwritten"},
		{"der", "\x30\x82\x01\x01", ErrMalformed, "would be overwritten"},
	} {
		path := filepath.Join(dir, tc.name)
		put(t, path, []byte(tc.text), 0o600)
		err := Replace(path, good)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, tc.want) || !e.HasCure() || !strings.Contains(err.Error(), tc.say) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %v, %s", tc.name, err, tc.want, tc.say)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != tc.text {
			t.Errorf("%s: the file holds %q, %v", tc.name, text, err)
		}
	}
	for name, chain := range map[string][][]byte{"no chain to store": nil, "number 2 of the new chain": {good[0], {1}}} {
		if err := Replace(filepath.Join(dir, "new"), chain); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %s", err, name)
		}
	}
	for path, want := range map[string]error{dir: ErrNotRegular, dir + "/absent/tls.crt": ErrUnwritable} {
		if err := Replace(path, good); !errors.Is(err, want) || strings.Contains(err.Error(), ".tmp") {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	alone(t, dir, "bashrc", "cut.both", "cut.key", "der")
}

// TestReplaceMendsACutChain: a chain alone is ours to write, however it was left.
func TestReplaceMendsACutChain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tls.crt")
	good := raw(issue(t, newKey(t), nil))
	for _, text := range []string{string(PEM(good)[:100]), "", "\n"} {
		put(t, path, []byte(text), 0o644)
		must(t, Replace(path, good))
		if _, err := Load(path); err != nil {
			t.Error(err)
		}
	}
}

func TestReplaceInAClosedDirectory(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("modes do not keep root, or Windows, from writing")
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o500))
	defer os.Chmod(dir, 0o700)
	err := Replace(filepath.Join(dir, "tls.crt"), raw(issue(t, newKey(t), nil)))
	if !errors.Is(err, ErrUnwritable) || !strings.Contains(err.Error(), "make its directory "+dir+" writable") {
		t.Errorf("got %v", err)
	}
}

// TestReplaceInOneStep: a reader sees a whole chain at any time.
func TestReplaceInOneStep(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file that is read is not replaced there")
	}
	path := filepath.Join(t.TempDir(), "tls.crt")
	var chain []*x509.Certificate
	for range 4 {
		chain = append(chain, issue(t, newKey(t), nil))
	}
	must(t, Replace(path, raw(chain...)))
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got, err := Load(path); err != nil || len(got) != 1 && len(got) != 4 {
					t.Errorf("a reader saw %d certificates, %v", len(got), err)
					return
				}
			}
		})
	}
	for i := range 100 {
		must(t, Replace(path, raw(chain[:1+3*(i%2)]...)))
	}
	close(stop)
	readers.Wait()
}

// TestReplaceKeepsTheOwner: who renews as root must not take the file from its user.
func TestReplaceKeepsTheOwner(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	path := filepath.Join(t.TempDir(), "tls.crt")
	good := raw(issue(t, newKey(t), nil))
	must(t, Replace(path, good))
	must(t, os.Chown(path, 4711, 4712))
	must(t, Replace(path, good))
	if uid, gid := ownerOf(t, path); uid != 4711 || gid != 4712 {
		t.Errorf("it belongs to %d:%d", uid, gid)
	}
}
