package socket

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// clock is one that a test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }

func (c *clock) step(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.t = c.t.Add(d) }

func newTestAuthority(t testing.TB, c *clock) *Authority {
	t.Helper()
	var o AuthorityOptions
	if c != nil {
		o.Clock = c.now
	}
	a, err := NewAuthority(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func parseCert(t testing.TB, data []byte) *x509.Certificate {
	t.Helper()
	b, rest := pem.Decode(data)
	if b == nil || b.Type != "CERTIFICATE" || len(rest) != 0 {
		t.Fatalf("not one certificate: %q", data)
	}
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func pool(t testing.TB, a *Authority) *x509.CertPool {
	t.Helper()
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(a.CertificatePEM()) {
		t.Fatal("no certificate in the PEM")
	}
	return p
}

func pairOf(t testing.TB, a *Authority) *tls.Certificate {
	t.Helper()
	p, err := a.ClientPair()
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair(p.CertificatePEM, p.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

func TestSessionAuthority(t *testing.T) {
	a, b := newTestAuthority(t, nil), newTestAuthority(t, nil)
	c := parseCert(t, a.CertificatePEM())
	if !c.IsCA || !c.MaxPathLenZero || c.KeyUsage != x509.KeyUsageCertSign || !a.NotAfter().Equal(c.NotAfter) {
		t.Errorf("not a CA for leafs alone: %+v", c)
	}
	if bytes.Equal(c.RawSubject, b.cert.RawSubject) || a.key.Equal(b.key) {
		t.Error("two authorities are alike")
	}
	got := a.CertificatePEM()
	got[0] = 'x'
	if bytes.Equal(got, a.CertificatePEM()) {
		t.Error("handed out its own bytes")
	}
}

func TestClientPair(t *testing.T) {
	clock := newClock()
	a := newTestAuthority(t, clock)
	first, err := a.ClientPair()
	if err != nil {
		t.Fatal(err)
	}
	same := func() bool {
		t.Helper()
		p, err := a.ClientPair()
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Equal(p.CertificatePEM, first.CertificatePEM) && bytes.Equal(p.KeyPEM, first.KeyPEM) && p.NotAfter.Equal(first.NotAfter)
	}
	c := parseCert(t, first.CertificatePEM)
	if c.Subject.String() != "CN=execproxy-session" || len(c.DNSNames)+len(c.IPAddresses)+len(c.URIs)+len(c.EmailAddresses) > 0 {
		t.Errorf("says more than it should: %s, %v", c.Subject, c.DNSNames)
	}
	if len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || c.IsCA {
		t.Errorf("usage %v, CA %t", c.ExtKeyUsage, c.IsCA)
	}
	if !first.NotAfter.Equal(clock.now().Add(30*24*time.Hour)) || !c.NotBefore.Equal(clock.now().Add(-time.Hour)) || !c.NotAfter.Equal(first.NotAfter) {
		t.Errorf("valid from %s to %s", c.NotBefore, c.NotAfter)
	}
	if b, _ := pem.Decode(first.KeyPEM); b == nil || b.Type != "PRIVATE KEY" {
		t.Errorf("key is %v", b)
	}
	first.KeyPEM[0] ^= 1 // the caller's copy
	if same() {
		t.Error("handed out its own bytes")
	}
	first.KeyPEM[0] ^= 1
	if !same() {
		t.Error("changed at once")
	}
	clock.step(20*24*time.Hour - time.Second)
	if !same() {
		t.Error("changed before the 20th day")
	}
	clock.step(-20*24*time.Hour - 50*time.Minute)
	if !same() {
		t.Error("changed when the clock was set back by less than an hour")
	}
	clock.step(20*24*time.Hour + 50*time.Minute + time.Second)
	if same() {
		t.Error("is the same after 20 days")
	}
	if first, err = a.ClientPair(); err != nil || !first.NotAfter.Equal(clock.now().Add(30*24*time.Hour)) {
		t.Errorf("second pair ends %s, %v", first.NotAfter, err)
	}
	clock.step(-2 * time.Hour)
	if same() {
		t.Error("is the same although the clock says that it is not yet valid")
	}
}

func TestClientPairIsOne(t *testing.T) {
	a := newTestAuthority(t, nil)
	pairs := make(chan *Pair)
	const n = 16
	for range n {
		go func() {
			p, err := a.ClientPair()
			if err != nil {
				t.Error(err)
			}
			pairs <- p
		}()
	}
	first := <-pairs
	for range n - 1 {
		if p := <-pairs; !bytes.Equal(p.CertificatePEM, first.CertificatePEM) {
			t.Error("two callers got two pairs")
		}
	}
}

func TestNames(t *testing.T) {
	a := newTestAuthority(t, nil)
	for _, good := range [][]string{{"prod.example.com"}, {"10.0.0.1"}, {"::1", "[fe80::1%eth0]"}, {"a_b.c-d.e"}, {"localhost."}, {"xn--bcher-kva.example"}} {
		if err := a.CheckNames(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range [][]string{nil, {""}, {"a b"}, {"bücher.example"}, {"prod:6443"}, {"https://prod"}, {"*.example.com"}, {"a..b"}, {"-a"}, {".a"},
		{strings.Repeat("a", 64)}, {strings.Repeat("a.", 130) + "b"}, {"prod", "bad/name"}, {"[prod]"}, {"a\nb"}} {
		err := a.CheckNames(bad)
		oneLine(t, err, "server name")
		// The listener would tell the same, later.
		if _, got := a.ServerConfig(bad, nil).GetCertificate(&tls.ClientHelloInfo{}); got == nil || got.Error() != err.Error() {
			t.Errorf("%q: %v at the handshake", bad, got)
		}
	}
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"prod.example.com", "10.0.0.1", "[::1]", "a.", "..", "*", "a_b", "[", "]", "::ffff:1.2.3.4", "1.2.3.4.5", "xn--a"} {
		f.Add(s)
	}
	a := newTestAuthority(f, nil)
	roots := pool(f, a)
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseNames([]string{s})
		if err != nil {
			oneLine(t, err)
			return
		}
		cert, _, err := a.issue(time.Now(), &x509.Certificate{NotAfter: time.Now().Add(time.Hour), DNSNames: n.dns, IPAddresses: n.ips})
		if err != nil {
			t.Fatalf("%q passed, but: %v", s, err)
		}
		if strings.Contains(s, "%") {
			return // clients verify an address without its zone
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: s, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Errorf("%q passed, but a client says: %v", s, err)
		}
	})
}

// Handshakes and rotation at the same time; the race detector watches.
func TestServerConfigConcurrently(t *testing.T) {
	clock := newClock()
	a := newTestAuthority(t, clock)
	config := a.ServerConfig([]string{"prod.example.com"}, a)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if _, err := config.GetCertificate(&tls.ClientHelloInfo{}); err != nil {
					t.Error(err)
				}
				clock.step(time.Hour)
			}
		})
	}
	wg.Wait()
}

func TestAuthorityAfterItsEnd(t *testing.T) {
	clock := newClock()
	a := newTestAuthority(t, clock)
	clock.step(80 * 365 * 24 * time.Hour)
	if _, err := a.ClientPair(); err == nil {
		t.Error("issued a pair that is over")
	}
	_, err := a.ServerConfig([]string{"x"}, a).GetCertificate(&tls.ClientHelloInfo{})
	oneLine(t, err, "expired")
}

// handshake runs one over a pipe, for benchmarks.
func handshake(server, client *tls.Config) error {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	go func() { done <- tls.Server(a, server).Handshake() }()
	err := tls.Client(b, client).Handshake()
	return errors.Join(err, <-done)
}
