//go:build unix

package socket

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A session that others could have read or put there is refused.
func TestSessionUnsafe(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string) error{
		"open to others": func(_ *testing.T, path string) error { return os.Chmod(path, 0o644) },
		"a link": func(t *testing.T, path string) error {
			aside := filepath.Join(t.TempDir(), "x")
			return errors.Join(os.Rename(path, aside), os.Symlink(aside, path))
		},
		"a directory": func(_ *testing.T, path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			d := openTestDir(t)
			openTestSession(t, d, AuthorityOptions{})
			if err := spoil(t, d.File(testSession+".pem")); err != nil {
				t.Fatal(err)
			}
			_, err := OpenSession(d, testSession, AuthorityOptions{})
			oneLine(t, err, "opening session", testSession)
			if unsafe := new(UnsafeError); !errors.As(err, &unsafe) {
				t.Errorf("not an *UnsafeError: %v", err)
			}
		})
	}
}
