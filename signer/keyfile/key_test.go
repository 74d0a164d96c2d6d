package keyfile

import (
	"bytes"
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestKinds loads each kind of key in each of its encodings, and authenticates a real TLS
// client with it.
func TestKinds(t *testing.T) {
	for kind, key := range kinds() {
		if kind == "P-224" {
			continue
		}
		encodings := map[string][]byte{"PKCS#8": pkcs8(t, key)}
		switch k := key.(type) {
		case *ecdsa.PrivateKey:
			encodings["SEC 1"] = sec1(t, k)
			encodings["SEC 1 with parameters"] = append(block("EC PARAMETERS", []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}), sec1(t, k)...)
		case *rsa.PrivateKey:
			encodings["PKCS#1"] = block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(k))
		}
		cert := issue(t, key, leaf{name: "jane"})
		for encoding, text := range encodings {
			t.Run(kind+" "+encoding, func(t *testing.T) {
				dir := t.TempDir()
				one := write(t, filepath.Join(dir, "one"), cert, caPEM(), text)
				separate := write(t, filepath.Join(dir, "key"), []byte("a comment\n"), text)
				certPath := write(t, filepath.Join(dir, "cert"), cert, caPEM())
				for _, load := range []func() (*Key, error){
					func() (*Key, error) { return Load(separate, certPath) },
					func() (*Key, error) { return Load(one, "") },
					func() (*Key, error) { return Load(one, one) },
					func() (*Key, error) { return Parse(text, append(cert, caPEM()...)) },
					func() (*Key, error) { return Parse(append(text, append(cert, caPEM()...)...), nil) },
				} {
					k, err := load()
					if err != nil {
						t.Fatal(err)
					}
					conforms(t, k)
					if len(k.CertificateChain()) != 2 || k.Leaf().Subject.CommonName != "jane" || len(k.Warnings()) != 0 {
						t.Errorf("got %d certificates, %s, warnings %q", len(k.CertificateChain()), k.Leaf().Subject, k.Warnings())
					}
					for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
						if who, err := handshake(t, k, version); err != nil || who != "jane" {
							t.Errorf("TLS %x: authenticated %q, %v", version, who, err)
						}
					}
					k.Close()
					if _, err := handshake(t, k, tls.VersionTLS13); err == nil || !strings.Contains(err.Error(), ErrClosed.Error()) {
						t.Errorf("after Close: %v", err)
					}
				}
			})
		}
	}
}

// conforms holds for every signer.Key: what it signs its leaf verifies; the chain is the
// leaf's; nothing private is printed.
func conforms(t *testing.T, k *Key) {
	t.Helper()
	message := []byte("message")
	digest := sha256.Sum256(message)
	parsed, err := x509.ParseCertificate(k.CertificateChain()[0])
	if err != nil || !parsed.Equal(k.Leaf()) {
		t.Fatalf("the chain does not begin with the leaf: %v", err)
	}
	switch public := parsed.PublicKey.(type) {
	case *ecdsa.PublicKey:
		sig, err := k.Sign(rand.Reader, digest[:], crypto.SHA256)
		if err != nil || !ecdsa.VerifyASN1(public, digest[:], sig) {
			t.Errorf("ECDSA: %v", err)
		}
	case *rsa.PublicKey:
		sig, err := k.Sign(rand.Reader, digest[:], crypto.SHA256)
		if err != nil || rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], sig) != nil {
			t.Errorf("PKCS #1 v1.5: %v", err)
		}
		sig, err = k.Sign(rand.Reader, digest[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256})
		if err != nil || rsa.VerifyPSS(public, crypto.SHA256, digest[:], sig, nil) != nil {
			t.Errorf("PSS: %v", err)
		}
	case ed25519.PublicKey:
		sig, err := k.Sign(rand.Reader, message, crypto.Hash(0))
		if err != nil || !ed25519.Verify(public, message, sig) {
			t.Errorf("Ed25519: %v", err)
		}
	}
	secrets := secretsOf(t, k.private)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", k)
	printed := log.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		printed += fmt.Sprintf(verb, k)
	}
	for _, s := range secrets {
		if strings.Contains(printed, s) {
			t.Errorf("printing shows the key: %.100s…", printed)
		}
	}
	if !strings.Contains(printed, "key of CN=jane") {
		t.Errorf("printing does not show whose key it is: %.100s", printed)
	}
	k.CertificateChain()[0] = nil // the caller's copy
	if k.CertificateChain()[0] == nil {
		t.Error("a caller can change the chain")
	}
}

func secretsOf(t *testing.T, key crypto.Signer) []string {
	t.Helper()
	var b []byte
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		b, _ = k.Bytes()
	case *rsa.PrivateKey:
		b = k.D.Bytes()
	case ed25519.PrivateKey:
		b = k.Seed()
	}
	if len(b) < 16 {
		t.Fatal("no secret to look for")
	}
	return []string{fmt.Sprintf("%x", b[:8]), fmt.Sprint(b[:8])[1:20], base64.StdEncoding.EncodeToString(b)[:12]}
}

// handshake authenticates a client with k, and tells as whom.
func handshake(t *testing.T, k *Key, version uint16) (who string, err error) {
	t.Helper()
	root, _ := ca()
	pool := x509.NewCertPool()
	pool.AddCert(root)
	serverKey := newKey()
	server, err := Parse(pkcs8(t, serverKey), issue(t, serverKey, leaf{name: "server"}))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	names := make(chan string, 1)
	go func() {
		defer close(names)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		c := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*server.TLSCertificate()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool})
		defer c.Close()
		if c.Handshake() != nil {
			return // the client says why
		}
		names <- c.ConnectionState().PeerCertificates[0].Subject.CommonName
		_, _ = c.Write([]byte("x"))
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{
		InsecureSkipVerify: true, MinVersion: version, MaxVersion: version,
		Certificates: []tls.Certificate{*k.TLSCertificate()},
	})
	if err != nil {
		<-names
		return "", err
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		<-names
		return "", err
	}
	return <-names, nil
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	key, cert := pair(t, "jane")
	_, otherCert := pair(t, "other")
	now := time.Now()
	k := newKey()
	x25519, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := write(t, filepath.Join(dir, "good.key"), key)
	goodCert := write(t, filepath.Join(dir, "good.crt"), cert)
	file := func(name string, parts ...[]byte) string { return write(t, filepath.Join(dir, name), parts...) }
	withKey := func(name string, l leaf) string { return file(name, pkcs8(t, k), issue(t, k, l)) }
	for _, tc := range []struct {
		key, cert string
		want      error
		path      string // the file to blame
		text      string
	}{
		{"", "", ErrMissing, "", "--key"},
		{dir + "/absent", goodCert, ErrMissing, dir + "/absent", "check the path"},
		{good, dir + "/absent", ErrMissing, dir + "/absent", "certificate file"},
		{dir, goodCert, ErrNotRegular, dir, "PEM file"},
		{good, dir, ErrNotRegular, dir, "PEM file"},
		{file("large", make([]byte, maxFile+1)), goodCert, ErrTooLarge, dir + "/large", ""},
		{file("empty"), goodCert, ErrNoKey, dir + "/empty", "PRIVATE KEY block"},
		{goodCert, good, ErrNoKey, goodCert, "with --cert"},
		{good, "", ErrNoCertificate, good, "append them"},
		{good, file("nocert", key), ErrNoCertificate, dir + "/nocert", "leaf first"},
		{file("two", key, pkcs8(t, k)), goodCert, ErrManyKeys, dir + "/two", "leave the one"},
		{file("cut.key", key[:len(key)-30]), goodCert, ErrMalformed, dir + "/cut.key", "cut short"},
		{good, file("cut.crt", cert, cert[:len(cert)-30]), ErrMalformed, dir + "/cut.crt", "1 of its 2 blocks"},
		{good, file("bad.crt", block("CERTIFICATE", []byte("x"))), ErrMalformed, dir + "/bad.crt", "number 1"},
		{file("bad.key", block("PRIVATE KEY", []byte("canary"))), goodCert, ErrMalformed, dir + "/bad.key", "openssl pkey"},
		{file("der", []byte{0x30, 0x82, 1, 1}), goodCert, ErrMalformed, dir + "/der", "-inform DER"},
		{file("enc8", block("ENCRYPTED PRIVATE KEY", []byte("x"))), goodCert, ErrEncrypted, dir + "/enc8", "openssl pkey"},
		{file("enc1", []byte("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n")),
			goodCert, ErrEncrypted, dir + "/enc1", "TPM or token"},
		{file("tss", block("TSS2 PRIVATE KEY", []byte("x"))), goodCert, ErrUnsupported, dir + "/tss", "tpm:" + dir + "/tss"},
		{file("ssh", block("OPENSSH PRIVATE KEY", []byte("x"))), goodCert, ErrUnsupported, dir + "/ssh", "ssh-keygen"},
		{file("dsa", block("DSA PRIVATE KEY", []byte("x"))), goodCert, ErrUnsupported, dir + "/dsa", "PKCS#8"},
		{file("p224", pkcs8(t, kinds()["P-224"])), goodCert, ErrUnsupported, dir + "/p224", "P-256"},
		{file("x25519", pkcs8(t, x25519)), goodCert, ErrUnsupported, dir + "/x25519", "Ed25519"},
		{good, file("other", otherCert), ErrMismatch, dir + "/other", "issued for this key"},
		{good, file("order", otherCert, cert), ErrMismatch, dir + "/order", "number 2: put it first"},
		{withKey("old", leaf{notBefore: now.Add(-2 * time.Hour), notAfter: now.Add(-time.Hour)}), "", ErrExpired, dir + "/old", "key enroll"},
		{withKey("new", leaf{notBefore: now.Add(time.Hour), notAfter: now.Add(2 * time.Hour)}), "", ErrNotYetValid, dir + "/new", "clock"},
	} {
		_, err := Load(tc.key, tc.cert)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, tc.want) || e.Path != tc.path || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s, %s: got %v, want %v, %s", tc.key, tc.cert, err, tc.want, tc.text)
			continue
		}
		if s := err.Error(); strings.Contains(s, "\n") || strings.Contains(s, "canary") || tc.path != "" && !strings.Contains(s, " file "+tc.path+": ") {
			t.Errorf("message %q", s)
		}
		if tc.want == ErrMissing && tc.path != "" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v is not fs.ErrNotExist", err)
		}
	}
	if _, err := Parse([]byte("x"), cert); !errors.Is(err, ErrNoKey) || strings.Contains(err.Error(), "file :") {
		t.Errorf("Parse: %v", err)
	}
}

func TestUnreadable(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("modes do not keep root, or Windows, from reading")
	}
	dir := t.TempDir()
	keyPath, certPath := writePair(t, dir, "jane")
	if err := os.Chmod(keyPath, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(keyPath, certPath); !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("got %v", err)
	}
}

func TestWarnings(t *testing.T) {
	dir := t.TempDir()
	keyPath, certPath := writePair(t, dir, "jane")
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: true, 0o604: true, 0o644: true} {
		if err := os.Chmod(keyPath, mode); err != nil {
			t.Fatal(err)
		}
		k, err := Load(keyPath, certPath)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("[key file %s: readable by others (mode %04o): chmod 600 %s]", keyPath, mode, keyPath)
		if !warned || runtime.GOOS == "windows" {
			want = "[]"
		}
		if got := fmt.Sprint(k.Warnings()); got != want {
			t.Errorf("mode %o: %s, want %s", mode, got, want)
		}
	}
	key := newKey()
	k, err := Parse(pkcs8(t, key), issue(t, key, leaf{usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}))
	if err != nil || len(k.Warnings()) != 1 || !strings.Contains(k.Warnings()[0], "not made for client authentication") {
		t.Errorf("a server's certificate: %v, %v", k.Warnings(), err)
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skip("this Go makes no small RSA keys")
	}
	if k, err = Parse(pkcs8(t, small), issue(t, small, leaf{})); err != nil || len(k.Warnings()) != 1 || !strings.Contains(k.Warnings()[0], "1024 bits") {
		t.Errorf("a small key: %v, %v", k, err)
	}
}

// FuzzParse: whatever is in a file, it is a key that signs, or an *Error of one line.
func FuzzParse(f *testing.F) {
	key, cert := pair(f, "jane")
	f.Add(key, cert)
	f.Add(append(key, cert...), []byte(nil))
	f.Add(block("EC PRIVATE KEY", []byte{0x30, 0}), cert[:50])
	f.Add([]byte("-----BEGIN PRIVATE KEY-----"), []byte("-----BEGIN -----"))
	f.Fuzz(func(t *testing.T, key, cert []byte) {
		k, err := Parse(key, cert)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %T %v", err, err)
			}
			return
		}
		digest := sha256.Sum256(nil)
		if _, err := k.Sign(rand.Reader, digest[:], crypto.SHA256); err != nil && len(k.Leaf().Raw) == 0 {
			t.Fatal(err)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	key, cert := pair(b, "jane")
	k, err := Parse(key, cert)
	if err != nil {
		b.Fatal(err)
	}
	digest := sha256.Sum256(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.Sign(rand.Reader, digest[:], crypto.SHA256); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	keyPath, certPath := writePair(b, b.TempDir(), "jane")
	for b.Loop() {
		if _, err := Load(keyPath, certPath); err != nil {
			b.Fatal(err)
		}
	}
}
