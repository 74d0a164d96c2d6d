package socket

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// How long certificates live, and when the next one is made. NotBefore lies back, for clocks that are set.
const (
	backdate  = time.Hour
	leafLife  = 48 * time.Hour
	leafRenew = 24 * time.Hour
	pairLife  = 30 * 24 * time.Hour
	pairRenew = 20 * 24 * time.Hour
)

// pairName is the subject of every client pair. It names no user: the pair opens a proxy, it identifies nobody.
const pairName = "execproxy-session"

// AuthorityOptions are what an [Authority] needs besides randomness. The zero value is ready.
type AuthorityOptions struct {
	Clock  func() time.Time // wall clock; nil: time.Now
	Logger *slog.Logger     // certificates issued, an end that is near; nil: nowhere
}

func (o AuthorityOptions) now() time.Time {
	if o.Clock == nil {
		// Without its monotonic reading, which stands still while the machine sleeps.
		return time.Now().Round(0)
	}
	return o.Clock().Round(0)
}

// Authority issues the certificates of one proxy. It is safe for concurrent use.
type Authority struct {
	cert     *x509.Certificate
	key      *ecdsa.PrivateKey
	pem      []byte
	loopback bool  // constrained; issues no client pairs
	kept     *kept // nil: ends with the process
	opts     AuthorityOptions
	log      *slog.Logger

	mu     sync.Mutex // held while a pair is made and stored
	pair   *Pair
	valid  window               // of pair
	issued map[string]time.Time // DER of the pairs that are not over, and when they are

	opens atomic.Pointer[map[string]time.Time] // a copy of issued, for every request; never changed
}

// window is the time in which a certificate is handed out, from its NotBefore until the next one is due.
type window struct{ from, renew time.Time }

func (w window) holds(now time.Time) bool { return !now.Before(w.from) && now.Before(w.renew) }

// Pair is a client certificate and its private key. It opens the proxy whose [Authority] made it, and nothing else.
type Pair struct {
	CertificatePEM []byte
	KeyPEM         []byte // PKCS #8, what most clients read
	NotAfter       time.Time
}

// NewAuthority makes an authority (ECDSA P-256) that is never stored: it ends with the process. It issues server
// certificates for any name, and client pairs.
func NewAuthority(o AuthorityOptions) (*Authority, error) {
	// Its end is the process's end, so its dates must not get in the way of a machine that starts with the clock of
	// its factory and learns the time later.
	t := &x509.Certificate{
		NotBefore:   time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:    time.Date(2099, 12, 31, 0, 0, 0, 0, time.UTC),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, key, err := selfSigned("execproxy session CA", t)
	if err != nil {
		return nil, err
	}
	return newAuthority(cert, key, o), nil
}

func newAuthority(cert *x509.Certificate, key *ecdsa.PrivateKey, o AuthorityOptions) *Authority {
	return &Authority{
		cert: cert, key: key, opts: o, log: logger(o.Logger),
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
	}
}

// selfSigned completes the template of a CA that signs leafs only. The subject is unique: a client that is asked for
// a certificate by issuer then does not offer one that another daemon made.
func selfSigned(name string, t *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making CA key: %w", err)
	}
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	t.Subject = pkix.Name{CommonName: name + " " + hex.EncodeToString(id)}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("making CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("making CA certificate: %w", err)
	}
	return cert, key, nil
}

// CertificatePEM is the authority's own certificate, which clients pin: one PEM block.
func (a *Authority) CertificatePEM() []byte { return bytes.Clone(a.pem) }

// NotAfter is the end of the authority's own certificate.
func (a *Authority) NotAfter() time.Time { return a.cert.NotAfter }

// issue signs a leaf with a key of its own. The template says what it is for and how long.
func (a *Authority) issue(now time.Time, t *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	if !t.NotAfter.After(now) {
		return nil, nil, fmt.Errorf("issuing certificate: the CA expired on %s: make a new one", a.cert.NotAfter.Format(time.DateOnly))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making key: %w", err)
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issuing certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("issuing certificate: %w", err)
	}
	return cert, key, nil
}

// ClientPair is the pair that opens this proxy: valid for 30 days, and the same bytes for 20, or until the clock is
// set back to before it; of an authority of [OpenSession] for ten years and five. client-go closes every connection
// when its certificate changes, so it changes rarely.
//
// An authority of [OpenAuthority] has none: whoever has read its file must not be able to make them.
func (a *Authority) ClientPair() (*Pair, error) {
	if a.loopback {
		return nil, errors.New("issuing client pair: the loopback CA is for servers only: use the session's authority")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	made, err := a.renew(a.opts.now())
	if err != nil {
		return nil, err
	}
	if made && a.kept != nil {
		if err := a.kept.store(a); err != nil {
			a.log.Warn("the new client pair lasts until the proxy ends", "error", err)
		}
	}
	return &Pair{bytes.Clone(a.pair.CertificatePEM), bytes.Clone(a.pair.KeyPEM), a.pair.NotAfter}, nil
}

// openFor adds a pair to those that open. It is called as renew is.
func (a *Authority) openFor(c *x509.Certificate) {
	if a.issued == nil {
		a.issued = make(map[string]time.Time)
	}
	a.issued[string(c.Raw)] = c.NotAfter
	opens := maps.Clone(a.issued)
	a.opens.Store(&opens)
}

// renew makes a pair where there is none, or its time has come. It is called under the lock, or before anybody else
// knows the authority.
func (a *Authority) renew(now time.Time) (made bool, err error) {
	if a.pair != nil && a.valid.holds(now) {
		return false, nil
	}
	from, to, renew := a.pairTimes(now)
	cert, key, err := a.issue(now, &x509.Certificate{
		Subject: pkix.Name{CommonName: pairName}, NotBefore: from, NotAfter: to,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return false, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return false, fmt.Errorf("encoding key: %w", err)
	}
	a.pair = &Pair{
		CertificatePEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		KeyPEM:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		NotAfter:       cert.NotAfter,
	}
	a.valid = window{cert.NotBefore, renew}
	maps.DeleteFunc(a.issued, func(_ string, end time.Time) bool { return now.After(end) })
	a.openFor(cert)
	a.log.Debug("client pair issued", "notAfter", cert.NotAfter)
	return true, nil
}
