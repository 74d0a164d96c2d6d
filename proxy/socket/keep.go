package socket

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

// keptLife is how long the pair of a kept session lives; half of it is the same bytes. It is that of the loopback CA,
// as clients pin both by the same file, and most never read that file again: a node agent that did at its start is
// shut out when its pair ends, and runs for as long as its version is supported.
const keptLife = caLife

// maxFormer bounds the former pairs that a kept session still opens for.
const maxFormer = 8

// OpenSession opens the session authority that is kept in dir as NAME.pem, and makes it if there is none: a proxy that
// is started again opens for those who have a pair of the one before. Its pair lives for ten years.
//
// The file, mode 0600, holds the keys of authority and pair. They open this proxy and nothing else, to whoever reaches
// it: the Unix socket asks for the uid too, on loopback the pair is all that tells users of this machine apart. So name
// must stand for one upstream server and one identity: a pair never opens another's proxy. Removing the file before a
// start revokes the pair.
//
// A file that cannot be parsed, or whose authority is no more valid, is replaced, which the log tells. One that others
// could have written or read is an *[UnsafeError].
func OpenSession(dir *Dir, name string, o AuthorityOptions) (*Authority, error) {
	if !isHostname(name) {
		return nil, fmt.Errorf("session name %q: not a name: use lower-case letters, digits and hyphens", name)
	}
	k := &kept{dir: dir, file: name + ".pem", lock: name + ".lock"}
	ctx, cancel := context.WithTimeout(context.Background(), caWait)
	defer cancel()
	lock, err := Acquire(ctx, dir.File(k.lock))
	if err != nil {
		return nil, fmt.Errorf("opening session: %w", err)
	}
	a, err := k.open(o)
	if err = both(err, lock.Remove()); err != nil {
		return nil, err
	}
	return a, nil
}

// kept is where a session is kept.
type kept struct {
	dir        *Dir
	file, lock string
}

func (k *kept) open(o AuthorityOptions) (*Authority, error) {
	path := k.dir.File(k.file)
	data, err := readOwn(path)
	var a *Authority
	switch {
	case err == nil:
		if a, err = parseSession(data, o); err == nil {
			break
		}
		logger(o.Logger).Warn("the kept session cannot be used and is made anew: clients must read their kubeconfig again", "file", path, "error", err)
		fallthrough
	case errors.Is(err, fs.ErrNotExist):
		if a, err = NewAuthority(o); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("opening session: %w", err)
	}
	a.kept = k
	made, err := a.renew(o.now())
	if err != nil || !made {
		return a, err
	}
	return a, k.store(a) // what cannot be kept must be known now, not at the next start
}

// store is called with the authority's lock held, or before anybody else knows it.
func (k *kept) store(a *Authority) error {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return fmt.Errorf("encoding key: %w", err)
	}
	out := bytes.Clone(a.pem)
	out = append(out, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
	out = append(out, a.pair.CertificatePEM...)
	out = append(out, a.pair.KeyPEM...)
	current, _ := pem.Decode(a.pair.CertificatePEM)
	former := make([]string, 0, len(a.issued))
	for c := range a.issued {
		if c != string(current.Bytes) {
			former = append(former, c)
		}
	}
	slices.SortFunc(former, func(x, y string) int { return a.issued[y].Compare(a.issued[x]) })
	for _, c := range former[:min(len(former), maxFormer)] {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(c)})...)
	}
	if err := writeOwn(k.dir, k.file, out); err != nil {
		return fmt.Errorf("keeping session in %q: %w", k.dir.File(k.file), err)
	}
	return nil
}

// parseSession takes what store writes: authority, key, pair, key, former pairs. Errors hold nothing of the data.
func parseSession(data []byte, o AuthorityOptions) (*Authority, error) {
	if len(data) > caMaxSize {
		return nil, fmt.Errorf("is over %d bytes", caMaxSize)
	}
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	if len(blocks) < 4 {
		return nil, errors.New("holds no authority and pair")
	}
	ca, caKey, err := certified(blocks[0], blocks[1])
	if err != nil {
		return nil, err
	}
	now := o.now()
	switch {
	case !ca.IsCA || !ca.BasicConstraintsValid || !ca.MaxPathLenZero || ca.CheckSignatureFrom(ca) != nil:
		return nil, errors.New("its certificate is not that of a CA of its own")
	case now.After(ca.NotAfter):
		return nil, fmt.Errorf("%w on %s, or the clock (%s) is wrong", ErrExpired, ca.NotAfter.Format(time.DateOnly), now.Format(time.DateOnly))
	}
	a := newAuthority(ca, caKey, o)
	current, _, err := certified(blocks[2], blocks[3])
	if err != nil {
		return nil, err
	}
	if err := a.admit(current, now); err != nil {
		return nil, err
	}
	for _, b := range blocks[4:] {
		c, err := parseCertificate(b)
		if err != nil {
			return nil, err
		}
		if err := a.admit(c, now); err != nil {
			return nil, err
		}
	}
	if _, lives := a.issued[string(current.Raw)]; lives {
		a.pair = &Pair{CertificatePEM: pem.EncodeToMemory(blocks[2]), KeyPEM: pem.EncodeToMemory(blocks[3]), NotAfter: current.NotAfter}
		a.valid = window{current.NotBefore, current.NotAfter.Add(-keptLife / 2)}
	}
	return a, nil
}

// admit opens for a pair that was issued before, unless it is over.
func (a *Authority) admit(c *x509.Certificate, now time.Time) error {
	if c.CheckSignatureFrom(a.cert) != nil || c.IsCA || c.Subject.CommonName != pairName ||
		!slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		return errors.New("holds a certificate that is not a pair of its authority")
	}
	if now.Before(c.NotAfter) {
		a.openFor(c)
	}
	return nil
}

// pairTimes is when a pair that is made now begins, ends, and is followed by the next.
func (a *Authority) pairTimes(now time.Time) (from, to, renew time.Time) {
	if a.kept == nil {
		return now.Add(-backdate), now.Add(pairLife), now.Add(pairRenew)
	}
	// A clock that has not been set yet, at the machine's start, must neither end the pair nor make another.
	to = notBeforeBuild(now).Add(keptLife)
	return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), to, to.Add(-keptLife / 2)
}

// certified is a certificate and its key.
func certified(cert, key *pem.Block) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	c, err := parseCertificate(cert)
	if err != nil {
		return nil, nil, err
	}
	k, err := parseKey(key)
	if err != nil {
		return nil, nil, err
	}
	if !k.PublicKey.Equal(c.PublicKey) {
		return nil, nil, errors.New("certificate and private key do not belong together")
	}
	return c, k, nil
}
