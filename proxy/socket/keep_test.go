package socket

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const testSession = "3f9c0d1e2b4a5968"

func openTestSession(t testing.TB, d *Dir, o AuthorityOptions) *Authority {
	t.Helper()
	a, err := OpenSession(d, testSession, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func pairIn(t testing.TB, a *Authority) *Pair {
	t.Helper()
	p, err := a.ClientPair()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// shown is what a listener knows of a client that has shown a pair.
func shown(t testing.TB, p *Pair) *tls.ConnectionState {
	t.Helper()
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{parseCert(t, p.CertificatePEM)}}
}

func TestOpenSession(t *testing.T) {
	clock := newClock()
	d := openTestDir(t)
	first := openTestSession(t, d, AuthorityOptions{Clock: clock.now})
	pair := pairIn(t, first)
	info, err := os.Stat(d.File(testSession + ".pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	if names, err := os.ReadDir(d.Path()); err != nil || len(names) != 1 {
		t.Errorf("in the directory: %v, %v", names, err)
	}

	clock.step(4 * 365 * 24 * time.Hour)
	second := openTestSession(t, d, AuthorityOptions{Clock: clock.now})
	if !bytes.Equal(first.CertificatePEM(), second.CertificatePEM()) || !first.key.Equal(second.key) {
		t.Error("it has another authority")
	}
	if p := pairIn(t, second); !bytes.Equal(p.CertificatePEM, pair.CertificatePEM) || !bytes.Equal(p.KeyPEM, pair.KeyPEM) || !p.NotAfter.Equal(pair.NotAfter) {
		t.Error("it has another pair")
	}
	if err := handshake(second.ServerConfig([]string{"prod"}, second), &tls.Config{
		RootCAs: pool(t, first), ServerName: "prod", Certificates: []tls.Certificate{*pairOf(t, first)}, Time: clock.now,
	}); err != nil {
		t.Error(err)
	}
	if !second.Verified(shown(t, pair)) {
		t.Error("the pair of before does not open it")
	}

	// Past its half there is another one, and the first opens on until its end.
	clock.step(365*24*time.Hour + time.Hour)
	next := pairIn(t, second)
	if bytes.Equal(next.CertificatePEM, pair.CertificatePEM) {
		t.Error("the pair is the same after five years")
	}
	third := openTestSession(t, d, AuthorityOptions{Clock: clock.now})
	if !bytes.Equal(pairIn(t, third).CertificatePEM, next.CertificatePEM) {
		t.Error("the second pair was not kept")
	}
	if !third.Verified(shown(t, pair)) || !third.Verified(shown(t, next)) {
		t.Error("a pair of before does not open it")
	}
	clock.step(5 * 365 * 24 * time.Hour)
	fourth := openTestSession(t, d, AuthorityOptions{Clock: clock.now})
	if third.Verified(shown(t, pair)) || fourth.Verified(shown(t, pair)) {
		t.Error("a pair that is over opens it")
	}
	if !fourth.Verified(shown(t, next)) {
		t.Error("a pair that is not over does not open it")
	}
}

// The pair of one server and identity opens no other.
func TestSessionsAreApart(t *testing.T) {
	d := openTestDir(t)
	a := openTestSession(t, d, AuthorityOptions{})
	b, err := OpenSession(d, "other", AuthorityOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ephemeral := newTestAuthority(t, nil)
	for _, stranger := range []*Authority{b, ephemeral} {
		if a.Verified(shown(t, pairIn(t, stranger))) {
			t.Error("another session's pair opens it")
		}
	}
	if _, err := OpenSession(d, "../x", AuthorityOptions{}); err == nil {
		t.Error("took a path for a name")
	}
}

// Removing the file revokes.
func TestSessionRemoved(t *testing.T) {
	d := openTestDir(t)
	pair := pairIn(t, openTestSession(t, d, AuthorityOptions{}))
	if err := os.Remove(d.File(testSession + ".pem")); err != nil {
		t.Fatal(err)
	}
	if openTestSession(t, d, AuthorityOptions{}).Verified(shown(t, pair)) {
		t.Error("the pair of before opens it")
	}
}

// A machine whose clock is not set yet starts its proxies too.
func TestSessionBeforeTheClockIsSet(t *testing.T) {
	clock := newClock()
	d := openTestDir(t)
	pair := pairIn(t, openTestSession(t, d, AuthorityOptions{Clock: clock.now}))
	early := func() time.Time { return time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC) }
	a := openTestSession(t, d, AuthorityOptions{Clock: early})
	if !bytes.Equal(pairIn(t, a).CertificatePEM, pair.CertificatePEM) || !a.Verified(shown(t, pair)) {
		t.Error("the pair is another one, or shut out, while the clock is wrong")
	}
	fresh := pairIn(t, openTestSession(t, openTestDir(t), AuthorityOptions{Clock: early}))
	if !fresh.NotAfter.After(clock.now()) {
		t.Error("a pair made while the clock was wrong is over when it is right")
	}
}

func TestSessionBadFile(t *testing.T) {
	d, other := openTestDir(t), openTestDir(t)
	good := sessionFile(t, d)
	blocks, err := pemBlocks(good)
	if err != nil {
		t.Fatal(err)
	}
	strange, err := pemBlocks(sessionFile(t, other))
	if err != nil {
		t.Fatal(err)
	}
	encode := func(blocks ...*pem.Block) (out []byte) {
		for _, b := range blocks {
			out = append(out, pem.EncodeToMemory(b)...)
		}
		return out
	}
	ca, err := newCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty":                   nil,
		"cut short":               good[:len(good)/2],
		"text":                    append(bytes.Clone(good), "hello\n"...),
		"no pair":                 encode(blocks[:2]...),
		"another's pair":          encode(blocks[0], blocks[1], strange[2], strange[3]),
		"another's key":           encode(blocks[0], strange[1], blocks[2], blocks[3]),
		"pair with another's key": encode(blocks[0], blocks[1], blocks[2], strange[3]),
		"another's former pair":   encode(append(slices.Clone(blocks), strange[2])...),
		"authority as a pair":     encode(append(slices.Clone(blocks), blocks[0])...),
		"key as a former pair":    encode(append(slices.Clone(blocks), blocks[1])...),
		"in another order":        encode(blocks[1], blocks[0], blocks[2], blocks[3]),
		"loopback CA":             append(ca, encode(blocks[2:]...)...),
		"too large":               bytes.Repeat([]byte("\n"), caMaxSize+1),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(d.File(testSession+".pem"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			log, lines := lineLog()
			a := openTestSession(t, d, AuthorityOptions{Logger: log})
			if line := await(t, lines); !strings.Contains(line, "made anew") || !strings.Contains(line, testSession) {
				t.Errorf("logged: %s", line)
			}
			again := openTestSession(t, d, AuthorityOptions{})
			if !again.Verified(shown(t, pairIn(t, a))) {
				t.Error("what was made anew was not kept")
			}
		})
	}
}

func sessionFile(t testing.TB, d *Dir) []byte {
	t.Helper()
	openTestSession(t, d, AuthorityOptions{})
	data, err := os.ReadFile(d.File(testSession + ".pem"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func FuzzParseSession(f *testing.F) {
	good := sessionFile(f, openTestDir(f))
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add(append(bytes.Clone(good), good...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseSession(data, AuthorityOptions{})
		if err != nil {
			oneLine(t, err)
			return
		}
		for c := range a.issued {
			cert := parseCert(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(c)}))
			if cert.IsCA || cert.CheckSignatureFrom(a.cert) != nil {
				t.Errorf("opens for %s", cert.Subject)
			}
		}
	})
}

// TestVerifiedWaitsForNobody: a pair is made and stored, on a disk that may hang, while requests on all connections
// are looked at, on one goroutine.
func TestVerifiedWaitsForNobody(t *testing.T) {
	a, err := NewAuthority(AuthorityOptions{})
	if err != nil {
		t.Fatal(err)
	}
	state := shown(t, pairIn(t, a))
	a.mu.Lock()
	defer a.mu.Unlock()
	known := make(chan bool, 1)
	go func() { known <- a.Verified(state) }()
	select {
	case ok := <-known:
		if !ok {
			t.Error("the pair does not open")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for whoever makes a pair")
	}
}
