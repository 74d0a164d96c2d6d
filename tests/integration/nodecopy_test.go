//go:build linux

package integration

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// noise is an endless stream of bytes that no two seeds have in common.
func noise(seed string) io.Reader { return rand.NewChaCha8(sha256.Sum256([]byte(seed))) }

// copies: a tree of 64 MiB and more, where r says no other size, there and back.
func copies(t *testing.T, r *route) {
	t.Helper()
	tree := r.path("home/tree")
	for name, size := range map[string]int64{
		"large": r.size + 4097, "deep/er/one": 1, "deep/empty": 0, "with space and ü": 12345, "deep/block": 32 << 10,
	} {
		path := filepath.Join(tree, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		f, err := os.Create(path)
		must(t, err)
		_, err = io.CopyN(f, noise(r.ns+name), size)
		must(t, err)
		must(t, f.Close())
	}
	want := hashes(t, tree)
	r.run(r.args("cp", "tree", "p:tree")...).ok(t)
	var there []string
	for line := range strings.Lines(r.script("", "cd tree && find . -type f | while read -r f; do sha256sum \"$f\"; done").ok(t)) {
		hash, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		there = append(there, strings.TrimPrefix(name, "./")+" "+hash)
	}
	slices.Sort(there)
	if !slices.Equal(there, want) {
		t.Errorf("copied into the pod:\n%q\nwant\n%q", there, want)
	}
	// kubectl that is slower than the pod may lose the end, without execproxy as well
	// (docs/streams.md), and this machine may be busy. The hash tells whether all is there.
	r.run(r.args("cp", "--retries=10", "p:tree", "back")...).ok(t)
	if back := hashes(t, r.path("home/back")); !slices.Equal(back, want) {
		t.Errorf("copied out of the pod:\n%q\nwant\n%q", back, want)
	}
	r.script("", "rm -r tree").ok(t)
}

// hashes lists the files below dir, each with its SHA-256.
func hashes(t *testing.T, dir string) (list []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(filepath.Clean(path))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		hash := sha256.New()
		if _, err := io.Copy(hash, f); err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		list = append(list, fmt.Sprintf("%s %x", name, hash.Sum(nil)))
		return err
	}))
	slices.Sort(list)
	return list
}
