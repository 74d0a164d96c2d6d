//go:build !windows

package tpm

import (
	"bytes"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

// testBlobs are files that were made by software TPMs: nobody has their seeds.
func testBlobs(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	paths, err := filepath.Glob("testdata/*.pem")
	if err != nil || len(paths) == 0 {
		t.Fatalf("testdata: %v, %d files", err, len(paths))
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(p), ".pem")] = text
	}
	return all
}

func TestParseBlob(t *testing.T) {
	want := map[string]auth{"openssl-ec": authUnknown, "openssl-rsa": authUnknown, "tools-ec": authUnknown, "password": authNeeded, "ours": authEmpty}
	for name, text := range testBlobs(t) {
		b, err := parseBlob(place{file: name}, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if b.auth != want[name] {
			t.Errorf("%s: auth %v, want %v", name, b.auth, want[name])
		}
	}
}

func TestMalformed(t *testing.T) {
	good := testBlobs(t)["openssl-ec"]
	block, _ := pem.Decode(good)
	again := func(typ string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der})
	}
	for name, tc := range map[string]struct {
		text []byte
		word string
	}{
		"empty":       {nil, "no PEM"},
		"text":        {[]byte("hello"), "no PEM"},
		"DER":         {block.Bytes, "no PEM"},
		"cut short":   {good[:len(good)/2], "cut short"},
		"two":         {append(bytes.Clone(good), good...), "more than one"},
		"plain key":   {again("PRIVATE KEY", []byte{0x30, 0}), "without tpm:"},
		"no DER":      {again(blobType, []byte("junk")), "well-formed"},
		"short DER":   {again(blobType, block.Bytes[:40]), "well-formed"},
		"large":       {bytes.Repeat([]byte("x"), maxFile+1), "too large"},
		"broken area": {again(blobType, bytes.Replace(block.Bytes, []byte{0x00, 0x23, 0x00, 0x0b}, []byte{0x00, 0x23, 0xff, 0xff}, 1)), ""},
		"off curve":   {again(blobType, flip(block.Bytes, 100)), "curve"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key.pem")
			if err := os.WriteFile(path, tc.text, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(t.Context(), Options{File: path, Device: "/nonexistent"})
			if name == "broken area" {
				// The TPM would refuse it. It must not get this far by a panic.
				var e *Error
				if !errors.As(err, &e) {
					t.Errorf("got %v", err)
				}
				return
			}
			wants(t, err, ErrMalformed, tc.word, path)
		})
	}
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{File: path})
	wants(t, err, ErrMalformed, "no regular file")
}

func TestUnreadable(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, nil, 0); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{File: path})
	wants(t, err, ErrNoKey, "permission")
}

// TestWriteNew: nothing is overwritten, not even a link to nowhere, and nothing half stays.
func TestWriteNew(t *testing.T) {
	dir := t.TempDir()
	at := place{file: filepath.Join(dir, "key.pem")}
	if err := writeNew(at, []byte("one")); err != nil {
		t.Fatal(err)
	}
	wants(t, writeNew(at, []byte("two")), ErrExists)
	link := place{file: filepath.Join(dir, "link.pem")}
	if err := os.Symlink("nowhere", link.file); err != nil {
		t.Fatal(err)
	}
	wants(t, writeNew(link, []byte("two")), ErrExists)
	wants(t, vacant(link), ErrExists)
	if text, err := os.ReadFile(at.file); string(text) != "one" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if all, _ := os.ReadDir(dir); len(all) != 2 {
		t.Errorf("left: %v", all)
	}
	wants(t, writeNew(place{file: filepath.Join(dir, "none", "key.pem")}, nil), ErrUnwritable)
}

// TestOwnBlob: what is written can be read.
func TestOwnBlob(t *testing.T) {
	s := newSWTPM(t)
	k := s.create(Options{File: s.file("key.pem"), Password: &secret{value: "right"}}, signer.ECP256)
	b, err := readBlob(k.place)
	if err != nil {
		t.Fatal(err)
	}
	if b.auth != authNeeded || b.parent != 0x40000001 || b.area.ObjectAttributes.Decrypt || b.area.ObjectAttributes.NoDA {
		t.Errorf("%+v", b)
	}
}

func FuzzParseBlob(f *testing.F) {
	for _, text := range testBlobs(f) {
		f.Add(text)
		block, _ := pem.Decode(text)
		f.Add(block.Bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, text := range [][]byte{b, pem.EncodeToMemory(&pem.Block{Type: blobType, Bytes: b})} {
			k, err := parseBlob(place{file: "f"}, text)
			var e *Error
			switch {
			case err == nil && (k.key == nil || len(schemesOf(k.key)) == 0):
				t.Error("neither key nor error")
			case err != nil && !errors.As(err, &e):
				t.Errorf("%T: %v", err, err)
			}
		}
	})
}
