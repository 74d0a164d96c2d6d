//go:build unix

package socket

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files to another user")
	}
}

func TestOpenDirCreates(t *testing.T) {
	top := tempDir(t)
	path := filepath.Join(top, "a", "b", "c")
	for range 2 { // made, then found
		d, err := OpenDir(path + "/")
		must(t, err)
		if d.Path() != path || d.File("x") != path+"/x" {
			t.Errorf("path %q, file %q", d.Path(), d.File("x"))
		}
	}
	for p := path; p != top; p = filepath.Dir(p) {
		info, err := os.Lstat(p)
		must(t, err)
		if info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s has mode %s", p, info.Mode())
		}
	}
}

func TestOpenDirUnderUmask(t *testing.T) {
	for _, mask := range []string{"0", "022", "0777"} {
		p := start(t, nil, "umask", mask, filepath.Join(tempDir(t), "a", "b"))
		p.expect("0700 0600 0600 ")
	}
}

func TestOpenDirRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		root  bool // needs root
		build func(t *testing.T, top string) (path string)
		want  []string
	}{
		{"world-writable", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p, 0o700), os.Chmod(p, 0o777))
			return p
		}, []string{"0777", "must be 0700", "chmod 0700"}},
		{"readable by others", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p, 0o700), os.Chmod(p, 0o755))
			return p
		}, []string{"0755", "chmod 0700"}},
		{"sticky and world-writable", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p, 0o700), os.Chmod(p, 0o777|os.ModeSticky))
			return p
		}, []string{"0777", "name a directory of your own"}},
		{"closed to ourselves", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p, 0o500))
			return p
		}, []string{"0500", "chmod 0700"}},
		{"symbolic link to a good one", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p+"real", 0o700), os.Symlink(p+"real", p))
			return p
		}, []string{"symbolic link"}},
		{"dangling symbolic link", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Symlink(p+"nowhere", p))
			return p
		}, []string{"symbolic link"}},
		{"file", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.WriteFile(p, nil, 0o600))
			return p
		}, []string{"not a directory"}},
		{"under a file", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.WriteFile(p, nil, 0o600))
			return filepath.Join(p, "e")
		}, []string{"not a directory"}},
		{"parent world-writable", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d", "e")
			must(t, os.MkdirAll(p, 0o700), os.Chmod(filepath.Dir(p), 0o777))
			return p
		}, []string{`/d"`, "0777", "could replace", "chmod go-w"}},
		{"missing under a world-writable parent", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d", "e")
			must(t, os.Mkdir(filepath.Dir(p), 0o700), os.Chmod(filepath.Dir(p), 0o777))
			return p
		}, []string{"0777"}},
		{"loop", false, func(t *testing.T, top string) string {
			must(t, os.Symlink("y", filepath.Join(top, "x")), os.Symlink("x", filepath.Join(top, "y")))
			return filepath.Join(top, "x", "e")
		}, []string{"symbolic links"}},
		{"behind a link, parent world-writable", false, func(t *testing.T, top string) string {
			must(t, os.MkdirAll(filepath.Join(top, "bad", "e"), 0o700), os.Chmod(filepath.Join(top, "bad"), 0o777),
				os.Symlink("bad", filepath.Join(top, "good")))
			return filepath.Join(top, "good", "e")
		}, []string{`/bad"`, "0777"}},
		{"foreign", true, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p, 0o700), os.Chown(p, nobody, nobody))
			return p
		}, []string{"uid 65534", "directory of your own"}},
		{"foreign parent", true, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d", "e")
			must(t, os.MkdirAll(p, 0o700), os.Chown(filepath.Dir(p), nobody, nobody))
			return p
		}, []string{`/d"`, "uid 65534", "could replace"}},
		{"foreign sticky parent", true, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d", "e")
			must(t, os.MkdirAll(p, 0o700), os.Chmod(filepath.Dir(p), 0o777|os.ModeSticky), os.Chown(filepath.Dir(p), nobody, nobody))
			return p
		}, []string{"uid 65534"}},
		{"parent writable by a group of others", true, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d", "e")
			must(t, os.MkdirAll(p, 0o700), os.Chown(filepath.Dir(p), 0, nobody), os.Chmod(filepath.Dir(p), 0o770))
			return p
		}, []string{"0770"}},
		{"another user's symbolic link among the parents", true, func(t *testing.T, top string) string {
			must(t, os.MkdirAll(filepath.Join(top, "real", "e"), 0o700), os.Symlink("real", filepath.Join(top, "link")),
				os.Lchown(filepath.Join(top, "link"), nobody, nobody))
			return filepath.Join(top, "link", "e")
		}, []string{"symbolic link of uid 65534"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root {
				needRoot(t)
			}
			path := tt.build(t, tempDir(t))
			before := tree(t, filepath.Dir(path))
			_, err := OpenDir(path)
			oneLine(t, err, tt.want...)
			if unsafe := new(UnsafeError); !errors.As(err, &unsafe) {
				t.Errorf("not an *UnsafeError: %v", err)
			}
			if after := tree(t, filepath.Dir(path)); after != before {
				t.Errorf("changed from\n%sto\n%s", before, after)
			}
		})
	}
}

// tree lists what is there, to see that a refusal changed nothing.
func tree(t testing.TB, top string) string {
	var b strings.Builder
	_ = filepath.Walk(top, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&b, path, info.Mode())
		}
		return nil
	})
	return b.String()
}

func TestOpenDirRelative(t *testing.T) {
	for _, path := range []string{"", "a/b", ".", "/tmp/\x00"} {
		_, err := OpenDir(path)
		oneLine(t, err, "not absolute")
	}
	_, err := OpenDir("/")
	oneLine(t, err, "root directory")
}

func TestOpenDirAccepts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		root  bool
		build func(t *testing.T, top string) string
	}{
		{"a sticky parent of root, as /tmp", true, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p, 0o700), os.Chmod(p, 0o777|os.ModeSticky))
			return filepath.Join(p, "e")
		}},
		{"a parent of the owner's private group", true, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p, 0o700), os.Chmod(p, 0o775))
			return filepath.Join(p, "e")
		}},
		{"a link of our own among the parents", false, func(t *testing.T, top string) string {
			must(t, os.MkdirAll(filepath.Join(top, "r", "s"), 0o700), os.Symlink("../r/s/..", filepath.Join(top, "r", "back")),
				os.Symlink(filepath.Join(top, "r", "back"), filepath.Join(top, "l")))
			return filepath.Join(top, "l", "e")
		}},
		{"set-group-id", false, func(t *testing.T, top string) string {
			p := filepath.Join(top, "d")
			must(t, os.Mkdir(p, 0o700), os.Chmod(p, 0o700|os.ModeSetgid))
			return p
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root {
				needRoot(t)
			}
			path := tt.build(t, tempDir(t))
			if _, err := OpenDir(path); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		})
	}
}

// Another user can neither use our directory nor make us use one that it prepared in a shared place.
func TestOpenDirOfAnotherUser(t *testing.T) {
	nobody := asNobody(t)
	shared := filepath.Join(tempDir(t), "shared")
	must(t, os.Mkdir(shared, 0o700), os.Chmod(shared, 0o777|os.ModeSticky))

	ours, theirs := filepath.Join(shared, "ours"), filepath.Join(shared, "theirs")
	_, err := OpenDir(ours)
	must(t, err)
	start(t, nobody, "opendir", theirs).expect("opened <nil>")

	_, err = OpenDir(theirs)
	oneLine(t, err, "uid 65534")
	if got := start(t, nobody, "opendir", ours).line(); !strings.Contains(got, "belongs to uid 0") {
		t.Errorf("another user opened ours: %s", got)
	}
	if got := start(t, nobody, "opendir", filepath.Join(ours, "in")).line(); !strings.Contains(got, "permission denied") {
		t.Errorf("another user got into ours: %s", got)
	}
}
