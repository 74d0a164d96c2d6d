package socket

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"
)

// Files of [OpenAuthority] in its directory.
const (
	caFile = "ca.pem"
	caNew  = caFile + unfinished
	caLock = "ca.lock" // only while the CA is made
)

// unfinished ends the name of what is written under the lock, before it is named for good.
const unfinished = ".new"

const (
	caLife    = 10 * 365 * 24 * time.Hour
	caNotice  = 90 * 24 * time.Hour // the end is logged this long ahead
	caMaxSize = 64 << 10            // bytes
	caWait    = 10 * time.Second    // for another creator
)

// ErrExpired is wrapped by the *[AuthorityError] for a CA whose time is over, or has not come.
var ErrExpired = errors.New("expired")

// AuthorityError says why the loopback CA on disk cannot be used. It is not replaced by itself: clients pin it, and
// the clock may be what is wrong.
type AuthorityError struct {
	Path string
	Err  error
}

func (e *AuthorityError) Error() string {
	return fmt.Sprintf("loopback CA %q: %v: remove the file to have a new one made, then make the kubeconfigs anew that pin this one", e.Path, e.Err)
}

func (e *AuthorityError) Unwrap() error { return e.Err }

// OpenAuthority opens the loopback CA in dir, and makes it if there is none. Clients pin it in files of theirs, so it
// stays the same for ten years; processes that make it at the same time agree on one.
//
// Its certificate carries critical name constraints (RFC 5280, section 4.2.1.10): the addresses 127.0.0.0/8 and
// ::1/128 and the name localhost. So whoever reads its file, ca.pem, mode 0600, can be this machine's loopback to the
// clients that pin it, and no other host. It issues server certificates, never client pairs.
//
// A file that cannot be used is an *[AuthorityError], one that is open to others an *[UnsafeError].
func OpenAuthority(dir *Dir, o AuthorityOptions) (*Authority, error) {
	a, err := readAuthority(dir, o)
	if errors.Is(err, fs.ErrNotExist) {
		a, err = createAuthority(dir, o)
	}
	if err != nil {
		return nil, err
	}
	if left := a.cert.NotAfter.Sub(o.now()); left < caNotice {
		a.log.Warn("the loopback CA ends soon: remove the file, then make the kubeconfigs anew that pin it", "file", dir.File(caFile), "notAfter", a.cert.NotAfter)
	}
	return a, nil
}

func readAuthority(dir *Dir, o AuthorityOptions) (*Authority, error) {
	path := dir.File(caFile)
	data, err := readOwn(path)
	if err != nil {
		return nil, fmt.Errorf("opening loopback CA: %w", err)
	}
	cert, key, err := parseCA(data)
	if err == nil {
		err = checkCA(cert, key, o.now())
	}
	if err != nil {
		return nil, &AuthorityError{path, err}
	}
	a := newAuthority(cert, key, o)
	a.loopback = true
	return a, nil
}

// createAuthority makes the file appear whole: a reader sees none or all of it, also after a power cut.
func createAuthority(dir *Dir, o AuthorityOptions) (a *Authority, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), caWait)
	defer cancel()
	lock, err := Acquire(ctx, dir.File(caLock))
	if err != nil {
		return nil, fmt.Errorf("making loopback CA: %w", err)
	}
	defer func() { err = both(err, lock.Remove()) }()
	if a, err := readAuthority(dir, o); !errors.Is(err, fs.ErrNotExist) {
		return a, err // another was faster
	}
	data, err := newCA(o.now())
	if err != nil {
		return nil, err
	}
	if err := writeOwn(dir, caFile, data); err != nil {
		return nil, fmt.Errorf("writing loopback CA: %w", err)
	}
	return readAuthority(dir, o)
}

func newCA(now time.Time) ([]byte, error) {
	cert, key, err := selfSigned("execproxy loopback CA", &x509.Certificate{
		NotBefore:                   time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:                    notBeforeBuild(now).Add(caLife),
		ExtKeyUsage:                 []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		PermittedDNSDomainsCritical: true, // the whole extension is
		PermittedDNSDomains:         []string{"localhost"},
		PermittedIPRanges:           loopbackRanges(),
	})
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding key: %w", err)
	}
	return append(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), nil
}

// notBeforeBuild is now, or later where the clock has not been set: what is made then must not be over when it is.
func notBeforeBuild(now time.Time) time.Time {
	if built := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); now.Before(built) {
		return built
	}
	return now
}

// readOwn reads a small file of our own that nobody else can open; one byte over caMaxSize tells that it is larger.
func readOwn(path string) ([]byte, error) {
	f, err := openOwn(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, caMaxSize+1))
}

// writeOwn makes a file appear whole. It is called under a lock, so the new file's name is free but for what a crash
// left.
func writeOwn(dir *Dir, name string, data []byte) (err error) {
	path := dir.File(name + unfinished)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := openOwn(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = both(err, f.Close()); err == nil {
		err = os.Rename(path, dir.File(name))
	}
	if err != nil {
		return both(err, os.Remove(path))
	}
	return syncDir(dir.path)
}

// parseCA takes one certificate and one private key, in any order, and nothing else. Errors hold nothing of the data.
func parseCA(data []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	if len(data) > caMaxSize {
		return nil, nil, fmt.Errorf("is over %d bytes", caMaxSize)
	}
	var cert *x509.Certificate
	var key *ecdsa.PrivateKey
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, nil, err
	}
	for _, block := range blocks {
		var err error
		switch {
		case block.Type == "CERTIFICATE" && cert == nil:
			if cert, err = parseCertificate(block); err != nil {
				return nil, nil, err
			}
		case block.Type == "PRIVATE KEY" && key == nil:
			if key, err = parseKey(block); err != nil {
				return nil, nil, err
			}
		default:
			return nil, nil, errors.New("holds more than one certificate and one private key")
		}
	}
	switch {
	case cert == nil:
		return nil, nil, errors.New("holds no certificate")
	case key == nil:
		return nil, nil, errors.New("holds no private key")
	}
	return cert, key, nil
}

// pemBlocks takes a file that is PEM and nothing else.
func pemBlocks(data []byte) (blocks []*pem.Block, err error) {
	for rest := bytes.TrimSpace(data); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		if !bytes.HasPrefix(rest, []byte("-----BEGIN ")) {
			return nil, errors.New("holds something that is not PEM")
		}
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("holds broken PEM")
		}
		blocks = append(blocks, block)
	}
	return blocks, nil
}

func parseCertificate(b *pem.Block) (*x509.Certificate, error) {
	if b.Type != "CERTIFICATE" {
		return nil, errors.New("holds something else where a certificate should be")
	}
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		return nil, errors.New("holds a certificate that cannot be parsed")
	}
	return c, nil
}

func parseKey(b *pem.Block) (*ecdsa.PrivateKey, error) {
	if b.Type != "PRIVATE KEY" {
		return nil, errors.New("holds something else where a private key should be")
	}
	k, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		return nil, errors.New("holds a private key that cannot be parsed")
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("holds a private key that is not ECDSA P-256")
	}
	return key, nil
}

// checkCA holds a CA that somebody may have put there to what we would have made. An unconstrained one in
// kubeconfigs would be worth stealing.
func checkCA(c *x509.Certificate, key *ecdsa.PrivateKey, now time.Time) error {
	switch {
	case !key.PublicKey.Equal(c.PublicKey):
		return errors.New("certificate and private key do not belong together")
	case !c.IsCA || !c.BasicConstraintsValid || c.CheckSignatureFrom(c) != nil:
		return errors.New("its certificate is not that of a CA of its own")
	case !constrained(c):
		return errors.New("its certificate is not constrained to loopback names")
	case now.After(c.NotAfter):
		return fmt.Errorf("%w on %s, or the clock (%s) is wrong", ErrExpired, c.NotAfter.Format(time.DateOnly), now.Format(time.DateOnly))
	case now.Before(c.NotBefore):
		return fmt.Errorf("not yet valid, starts on %s, or the clock (%s) is wrong: %w", c.NotBefore.Format(time.DateOnly), now.Format(time.DateOnly), ErrExpired)
	}
	return nil
}

func constrained(c *x509.Certificate) bool {
	if !c.PermittedDNSDomainsCritical || len(c.PermittedDNSDomains) == 0 || len(c.PermittedIPRanges) == 0 {
		return false // a kind of name that is not mentioned is not constrained
	}
	if slices.ContainsFunc(c.PermittedDNSDomains, func(d string) bool { return d != "localhost" }) {
		return false
	}
	ones := func(n *net.IPNet) int { b, _ := n.Mask.Size(); return b }
	return !slices.ContainsFunc(c.PermittedIPRanges, func(n *net.IPNet) bool {
		return !slices.ContainsFunc(loopbackRanges(), func(r *net.IPNet) bool {
			return len(r.IP) == len(n.IP) && r.Contains(n.IP) && ones(n) >= ones(r)
		})
	})
}
