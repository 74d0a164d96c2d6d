//go:build unix

package socket

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestAuthorityFileIsPrivate(t *testing.T) {
	d := openTestDir(t)
	openTestAuthority(t, d, AuthorityOptions{})
	path := d.File(caFile)
	info, err := os.Lstat(path)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %s", info.Mode())
	}
	for _, tt := range []struct {
		name   string
		change func() error
		want   string
	}{
		{"readable by others", func() error { return os.Chmod(path, 0o644) }, "chmod 0600"},
		{"foreign", func() error { return errors.Join(os.Chmod(path, 0o600), os.Chown(path, nobody, nobody)) }, "uid 65534"},
		{"symbolic link", func() error { return errors.Join(os.Rename(path, path+"x"), os.Symlink(path+"x", path)) }, "symbolic link"},
		{"directory", func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, "not a regular file"},
	} {
		if tt.name == "foreign" && os.Geteuid() != 0 {
			continue
		}
		must(t, tt.change())
		_, err := OpenAuthority(d, AuthorityOptions{})
		oneLine(t, err, path, tt.want)
		if unsafe := new(UnsafeError); !errors.As(err, &unsafe) {
			t.Errorf("%s: not an *UnsafeError: %v", tt.name, err)
		}
	}
}

// A directory that cannot be written is an error, and nothing stays behind.
func TestAuthorityCannotBeWritten(t *testing.T) {
	d := openTestDir(t)
	must(t, os.Mkdir(d.File(caNew), 0o700), os.WriteFile(filepath.Join(d.File(caNew), "x"), nil, 0o600))
	_, err := OpenAuthority(d, AuthorityOptions{})
	oneLine(t, err, "writing loopback CA", caNew)
	if _, err := os.Lstat(d.File(caFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the CA exists: %v", err)
	}
}

func TestRacingAuthorities(t *testing.T) {
	path := filepath.Join(tempDir(t), "ca")
	const n = 20
	procs := make([]*proc, n)
	for i := range procs {
		procs[i] = start(t, nil, "openca", path)
	}
	for _, p := range procs {
		p.expect("ready")
	}
	for _, p := range procs {
		must(t, p.stdin.Close())
	}
	first := procs[0].line()
	for _, p := range procs[1:] {
		if got := p.line(); got != first {
			t.Errorf("two creators made two CAs: %s and %s", first, got)
		}
	}
	if names, err := os.ReadDir(path); err != nil || len(names) != 1 {
		t.Errorf("in the directory: %v, %v", names, err)
	}
}
