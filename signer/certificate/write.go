package certificate

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// PEM returns the text of a chain, DER, in its order.
func PEM(chain [][]byte) []byte {
	var b bytes.Buffer
	for _, der := range chain {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Buffer takes all
	}
	return b.Bytes()
}

// Replace stores a chain, DER, leaf first, in a PEM file, in the place of the certificates
// that are there. Blocks of other kinds stay: the key may lie in the same file. Readers see
// the old text or the new one, never a part, also after a crash. A symbolic link is followed,
// and stays. A file that exists keeps its mode and owner, a new one is 0644: certificates are
// no secret. It fails with an *[Error], and leaves everything as it was then.
func Replace(path string, chain [][]byte) error {
	if len(chain) == 0 {
		return &Error{What: "certificate", Path: path, Err: errors.New("no chain to store"), Cure: "give the leaf first"}
	}
	for i, der := range chain {
		if _, err := x509.ParseCertificate(der); err != nil {
			return &Error{What: "certificate", Path: path, Err: fmt.Errorf("certificate number %d of the new chain cannot be parsed", i+1),
				Cure: "have it issued again"}
		}
	}
	target := follow(path)
	old, info, err := ReadFile("certificate", target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	kept, err := others(path, old)
	if err != nil {
		return err
	}
	if err := write(target, append(kept, PEM(chain)...), info); err != nil {
		e := &Error{What: "certificate", Path: path, Err: fmt.Errorf("%w: %w", ErrUnwritable, plain(err))}
		switch {
		case errors.Is(err, fs.ErrPermission):
			e.Cure = "make its directory " + filepath.Dir(target) + " writable for the user that runs this"
		case errors.Is(err, fs.ErrNotExist):
			e.Cure = "make its directory " + filepath.Dir(target)
		default:
			e.Cure = "mend that, and store it again"
		}
		return e
	}
	return nil
}

// others returns the blocks of a PEM text that are no certificates. A text that is none is
// not ours to overwrite, and a broken one may hold a broken key.
func others(path string, text []byte) ([]byte, error) {
	all, err := Blocks("certificate", path, text)
	if err != nil && bytes.Contains(text, []byte("PRIVATE KEY")) {
		return nil, err
	}
	if err == nil && len(all) == 0 && len(bytes.TrimSpace(text)) > 0 || err != nil && !bytes.Contains(text, []byte("-----BEGIN CERTIFICATE-----")) {
		return nil, &Error{What: "certificate", Path: path, Err: ErrMalformed,
			Detail: "it would be overwritten", Cure: "name a PEM file, or one that is not there yet"}
	}
	var kept bytes.Buffer
	for _, b := range all {
		if b.Type == "CERTIFICATE" {
			continue
		}
		if err := pem.Encode(&kept, b); err != nil {
			return nil, &Error{What: "certificate", Path: path, Err: ErrMalformed,
				Detail: "its " + b.Type + " block cannot be kept", Cure: "put the certificates into a file of their own"}
		}
	}
	return kept.Bytes(), nil
}

// follow returns what a symbolic link stands for, whether that is there or not.
func follow(path string) string {
	for range maxLinks {
		next, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(filepath.Dir(path), next)
		}
		path = next
	}
	return path
}

const maxLinks = 40 // as in Linux

// write puts text in the place of path in one step. old is what is there, or nil.
func write(path string, text []byte, old fs.FileInfo) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp") // 0600 until all is in it
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	mode := fs.FileMode(0o644)
	if old != nil {
		mode = old.Mode().Perm()
		if err := keepOwner(f, old); err != nil {
			return err
		}
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	syncDir(dir)
	return nil
}
