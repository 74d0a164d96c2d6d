package socket

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func openTestDir(t testing.TB) *Dir {
	t.Helper()
	d, err := OpenDir(filepath.Join(tempDir(t), "ca"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func openTestAuthority(t testing.TB, d *Dir, o AuthorityOptions) *Authority {
	t.Helper()
	a, err := OpenAuthority(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestOpenAuthority(t *testing.T) {
	d := openTestDir(t)
	log, lines := lineLog()
	first := openTestAuthority(t, d, AuthorityOptions{Logger: log})
	second := openTestAuthority(t, d, AuthorityOptions{})
	if !bytes.Equal(first.CertificatePEM(), second.CertificatePEM()) || !first.key.Equal(second.key) {
		t.Error("a second opening made another CA")
	}
	names, err := os.ReadDir(d.Path())
	if err != nil || len(names) != 1 || names[0].Name() != caFile {
		t.Errorf("in the directory: %v, %v", names, err)
	}
	c := parseCert(t, first.CertificatePEM())
	// OID 2.5.29.30 is nameConstraints.
	i := slices.IndexFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.String() == "2.5.29.30" })
	if i < 0 || !c.Extensions[i].Critical {
		t.Errorf("no critical name constraints: %v", c.Extensions)
	}
	if !c.IsCA || !c.MaxPathLenZero || len(c.PermittedDNSDomains) != 1 || len(c.PermittedIPRanges) != 2 {
		t.Errorf("constraints: %v, %v", c.PermittedDNSDomains, c.PermittedIPRanges)
	}
	if left := time.Until(c.NotAfter); left < 9*365*24*time.Hour || left > 11*365*24*time.Hour {
		t.Errorf("ends on %s", c.NotAfter)
	}
	if bytes.Contains(first.CertificatePEM(), []byte("KEY")) {
		t.Error("the certificate comes with the key")
	}
	if _, err := first.ClientPair(); err == nil {
		t.Error("issued a client pair")
	}
	select {
	case line := <-lines:
		t.Errorf("logged %q", line)
	default:
	}
}

func TestLoopbackServer(t *testing.T) {
	ca := openTestAuthority(t, openTestDir(t), AuthorityOptions{})
	session := newTestAuthority(t, nil)
	for _, names := range [][]string{nil, {"localhost", "127.0.0.1", "::1"}} {
		ask := served(t, session, ca.ServerConfig(names, session))
		for _, name := range []string{"localhost", "127.0.0.1", "::1"} {
			body, _, err := ask(&tls.Config{RootCAs: pool(t, ca), ServerName: name, Certificates: []tls.Certificate{*pairOf(t, session)}})
			if err != nil || body != pairName {
				t.Errorf("%s: %q, %v", name, body, err)
			}
		}
		// What serves as a listener's certificate is nobody's client pair.
		c, err := ca.ServerConfig(nil, nil).GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _, err := ask(&tls.Config{RootCAs: pool(t, ca), ServerName: "localhost", GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }}); err != nil || body != "nobody" {
			t.Errorf("a server certificate passed as a client's: %q, %v", body, err)
		}
	}
	for _, name := range []string{"example.com", "10.0.0.1", "128.0.0.1", "::2", "localhost.example.com", "notlocalhost", "0.0.0.0"} {
		oneLine(t, ca.CheckNames([]string{name}), name, "loopback CA is for nothing else")
	}
	for _, name := range []string{"a.localhost", "127.255.255.254", "::ffff:127.0.0.1"} {
		if err := ca.CheckNames([]string{name}); err != nil {
			t.Error(err)
		}
	}
}

// Whoever steals the CA's key gets no certificate out of it that a verifier takes for another host.
func TestLoopbackCAIsWorthlessElsewhere(t *testing.T) {
	ca := openTestAuthority(t, openTestDir(t), AuthorityOptions{})
	verify := func(t *testing.T, leaf *x509.Certificate, name string) error {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: pool(t, ca), DNSName: name})
		return err
	}
	for _, tt := range []struct {
		name string
		dns  []string
		ips  []net.IP
		good bool
	}{
		{"localhost", []string{"localhost"}, nil, true},
		{"127.0.0.1", nil, []net.IP{net.IPv4(127, 0, 0, 1)}, true},
		{"::1", nil, []net.IP{net.IPv6loopback}, true},
		{"example.com", []string{"example.com"}, nil, false},
		{"example.com", []string{"localhost", "example.com"}, nil, false},
		{"localhost", []string{"localhost", "example.com"}, nil, false},
		{"10.0.0.1", nil, []net.IP{net.IPv4(10, 0, 0, 1)}, false},
		{"fd00::1", nil, []net.IP{net.ParseIP("fd00::1")}, false},
	} {
		t.Run(strings.Join(append(tt.dns, tt.name), ","), func(t *testing.T) {
			leaf, _, err := ca.issue(time.Now(), &x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
				DNSNames: tt.dns, IPAddresses: tt.ips, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
			if err != nil {
				t.Fatal(err)
			}
			err = verify(t, leaf, tt.name)
			if invalid := (x509.CertificateInvalidError{}); !tt.good && (!errors.As(err, &invalid) || invalid.Reason != x509.CANotAuthorizedForThisName) {
				t.Errorf("Go says: %v", err)
			} else if tt.good && err != nil {
				t.Errorf("Go says: %v", err)
			}
			// A second opinion.
			openssl, err := exec.LookPath("openssl")
			if err != nil {
				t.Log("no openssl here to ask too")
				return
			}
			dir := tempDir(t)
			for name, data := range map[string][]byte{"ca": ca.CertificatePEM(), "leaf": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})} {
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := exec.Command(openssl, "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", filepath.Join(dir, "ca"), filepath.Join(dir, "leaf")).CombinedOutput()
			if (err == nil) != tt.good {
				t.Errorf("openssl says: %v, %s", err, out)
			}
		})
	}
}

func TestOpenAuthorityBadFile(t *testing.T) {
	now := time.Now()
	good, err := newCA(now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newCA(now)
	if err != nil {
		t.Fatal(err)
	}
	split := func(data []byte) (cert, key []byte) {
		i := bytes.Index(data, []byte("-----BEGIN PRIVATE"))
		return data[:i], data[i:]
	}
	cert, key := split(good)
	otherCert, _ := split(other)
	session := newTestAuthority(t, nil)
	_, sessionKey := split(encodeCA(t, session))
	edKey := []byte("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n-----END PRIVATE KEY-----\n")

	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "no certificate"},
		{"cut short", good[:len(good)/2], "broken PEM"},
		{"cut in the key", good[:len(good)-40], "broken PEM"},
		{"text", []byte("hello\n"), "not PEM"},
		{"text behind", append(bytes.Clone(good), "hello\n"...), "not PEM"},
		{"no key", cert, "no private key"},
		{"no certificate", key, "no certificate"},
		{"two certificates", slices.Concat(cert, cert, key), "more than one"},
		{"another's key", slices.Concat(otherCert, key), "do not belong together"},
		{"another kind of key", slices.Concat(cert, edKey), "not ECDSA P-256"},
		{"garbage in the certificate", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), "certificate that cannot be parsed"},
		{"garbage in the key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), "key that cannot be parsed"},
		{"unconstrained", slices.Concat(session.CertificatePEM(), sessionKey), "not constrained"},
		{"too large", bytes.Repeat([]byte("\n"), caMaxSize+1), "is over"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := openTestDir(t)
			path := d.File(caFile)
			if err := os.WriteFile(path, tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := OpenAuthority(d, AuthorityOptions{})
			oneLine(t, err, path, tt.want, "remove the file")
			if ae := new(AuthorityError); !errors.As(err, &ae) || ae.Path != path || errors.Is(err, ErrExpired) {
				t.Errorf("not an *AuthorityError: %v", err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, tt.data) {
				t.Error("the file was changed")
			}
		})
	}
}

func encodeCA(t testing.TB, a *Authority) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return append(a.CertificatePEM(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
}

func TestConstrained(t *testing.T) {
	wide := &net.IPNet{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(7, 32)}
	narrow := &net.IPNet{IP: net.IPv4(127, 0, 0, 1).To4(), Mask: net.CIDRMask(32, 32)}
	ok := x509.Certificate{PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{"localhost"}, PermittedIPRanges: loopbackRanges()}
	for name, tt := range map[string]struct {
		change func(*x509.Certificate)
		want   bool
	}{
		"as made":         {func(*x509.Certificate) {}, true},
		"narrower":        {func(c *x509.Certificate) { c.PermittedIPRanges = []*net.IPNet{narrow} }, true},
		"not critical":    {func(c *x509.Certificate) { c.PermittedDNSDomainsCritical = false }, false},
		"no names":        {func(c *x509.Certificate) { c.PermittedDNSDomains = nil }, false},
		"no addresses":    {func(c *x509.Certificate) { c.PermittedIPRanges = nil }, false},
		"another name":    {func(c *x509.Certificate) { c.PermittedDNSDomains = append(c.PermittedDNSDomains, "com") }, false},
		"every name":      {func(c *x509.Certificate) { c.PermittedDNSDomains = []string{""} }, false},
		"wider addresses": {func(c *x509.Certificate) { c.PermittedIPRanges = []*net.IPNet{wide} }, false},
		"every address": {func(c *x509.Certificate) {
			c.PermittedIPRanges = []*net.IPNet{{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
		}, false},
	} {
		c := ok
		tt.change(&c)
		if got := constrained(&c); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The CA is not replaced when the clock says that it is over: it may be the clock.
func TestOpenAuthorityExpired(t *testing.T) {
	d := openTestDir(t)
	clock := newClock()
	log, lines := lineLog()
	o := AuthorityOptions{Clock: clock.now, Logger: log}
	ca := openTestAuthority(t, d, o)

	clock.step(caLife - 30*24*time.Hour)
	openTestAuthority(t, d, o)
	if line := await(t, lines); !strings.Contains(line, "ends soon") || !strings.Contains(line, caFile) {
		t.Errorf("logged %q", line)
	}
	// Near the end leafs end with it.
	clock.step(30*24*time.Hour - time.Hour)
	leaf, err := ca.ServerConfig(nil, nil).GetCertificate(nil)
	if err != nil || !leaf.Leaf.NotAfter.Equal(ca.NotAfter()) {
		t.Errorf("leaf: %v", err)
	}
	clock.step(2 * time.Hour)
	_, err = OpenAuthority(d, o)
	oneLine(t, err, d.File(caFile), "expired on 2036", "clock (2036", "remove the file")
	if !errors.Is(err, ErrExpired) {
		t.Errorf("not ErrExpired: %v", err)
	}
	clock.step(-50 * 365 * 24 * time.Hour)
	_, err = OpenAuthority(d, o)
	oneLine(t, err, "not yet valid", "clock (1986")

	clock.step(50 * 365 * 24 * time.Hour)
	if err := os.Remove(d.File(caFile)); err != nil { // the cure
		t.Fatal(err)
	}
	if next := openTestAuthority(t, d, o); bytes.Equal(next.CertificatePEM(), ca.CertificatePEM()) {
		t.Error("the same again")
	}
}

// Made while the clock stands at the beginning of time, it is good when the clock is right.
func TestOpenAuthorityBeforeClockIsSet(t *testing.T) {
	d := openTestDir(t)
	early := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	openTestAuthority(t, d, AuthorityOptions{Clock: func() time.Time { return early }})
	openTestAuthority(t, d, AuthorityOptions{})
}

// What a crash left of a half-written CA is in nobody's way.
func TestOpenAuthorityAfterCrash(t *testing.T) {
	d := openTestDir(t)
	for _, name := range []string{caNew, caLock} {
		if err := os.WriteFile(d.File(name), []byte("-----BEGIN"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openTestAuthority(t, d, AuthorityOptions{})
	if names, err := os.ReadDir(d.Path()); err != nil || len(names) != 1 {
		t.Errorf("in the directory: %v, %v", names, err)
	}
}

func FuzzParseCA(f *testing.F) {
	good, err := newCA(time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add(append(bytes.Clone(good), good...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cert, key, err := parseCA(data)
		if err == nil {
			err = checkCA(cert, key, time.Now())
		}
		if err != nil {
			oneLine(t, err)
			return
		}
		if !cert.IsCA || !constrained(cert) || !key.PublicKey.Equal(cert.PublicKey) {
			t.Errorf("passed: %q", data)
		}
	})
}
