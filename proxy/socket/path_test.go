package socket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestCheckPath(t *testing.T) {
	root := "/"
	if runtime.GOOS == "windows" {
		root = `C:\`
	}
	for _, tt := range []struct {
		path string
		want string // "" for a good one
	}{
		{root + "run/execproxy/a.sock", ""},
		{root + strings.Repeat("a", maxPath()-len(root)), ""},
		{root + strings.Repeat("a", maxPath()-len(root)+1), "too long"},
		{root + strings.Repeat("ä", maxPath()/2+1), "too long"},
		{"", "empty"},
		{"a.sock", "not absolute"},
		{"@abstract", "not absolute"},
		{"unix:///run/a.sock", "not absolute"},
		{root, "names a directory"},
		{root + "run/", "names a directory"},
		{root + "run/.", "names a directory"},
		{root + "run/..", "names a directory"},
		{root + "run/a\x00.sock", "NUL"},
	} {
		err := CheckPath(tt.path)
		if tt.want == "" {
			if err != nil {
				t.Errorf("%q: %v", tt.path, err)
			}
			continue
		}
		oneLine(t, err, tt.want)
		if got := errors.Is(err, ErrPathTooLong); got != (tt.want == "too long") {
			t.Errorf("%q: ErrPathTooLong is %t", tt.path, got)
		}
	}
}

// The limit is the system's: the longest path works, the next does not.
func TestPathLimitIsReal(t *testing.T) {
	dir := tempDir(t)
	longest := filepath.Join(dir, strings.Repeat("a", maxPath()-len(dir)-1))
	l, err := Listen(longest)
	if err != nil {
		t.Fatalf("%d bytes: %v", len(longest), err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if raw, err := net.Listen("unix", longest+"a"); err == nil {
		_ = raw.Close()
		t.Errorf("the system takes %d bytes, the limit is too low", len(longest)+1)
	}
	for _, f := range []func() error{
		func() error { _, err := Listen(longest + "a"); return err },
		func() error { _, err := Dial(testContext(t), longest+"a"); return err },
	} {
		err := f()
		oneLine(t, err, "too long", "choose a shorter directory")
		if !errors.Is(err, ErrPathTooLong) {
			t.Errorf("not ErrPathTooLong: %v", err)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"", "/", "/a", "a", "/a/", "/a/..", "/\x00", "@a", strings.Repeat("/a", 60)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		err := CheckPath(path)
		if err != nil {
			oneLine(t, err)
			return
		}
		if _, rerr := net.ResolveUnixAddr("unix", path); rerr != nil || len(path) > maxPath() || !filepath.IsAbs(path) {
			t.Errorf("%q passed: %v", path, rerr)
		}
	})
}
