//go:build !windows

package tpm

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
)

const handle = 0x81010001

var places = map[string]func(*swtpm) Options{
	"file":   func(s *swtpm) Options { return Options{File: s.file("key.pem")} },
	"handle": func(*swtpm) Options { return Options{Handle: handle} },
}

// TestCreate makes every kind of key everywhere, opens it again, and finds nothing left behind.
func TestCreate(t *testing.T) {
	ecdsa256, ecdsa384 := []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}, []tls.SignatureScheme{tls.ECDSAWithP384AndSHA384}
	rsaAll := []tls.SignatureScheme{tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512, tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512}
	for where, options := range places {
		for a, want := range map[signer.Algorithm][]tls.SignatureScheme{
			signer.ECP256: ecdsa256, signer.ECP384: ecdsa384, signer.RSA2048: rsaAll, signer.RSA3072: rsaAll,
		} {
			t.Run(fmt.Sprintf("%s/%s", where, a), func(t *testing.T) {
				t.Parallel()
				s := newSWTPM(t)
				o := options(s)
				k := s.create(o, a)
				signs(t, k)
				if got := k.SupportedSignatureAlgorithms(); !slices.Equal(got, want) {
					t.Errorf("schemes %v, want %v", got, want)
				}
				if w := k.Warnings(); len(w) != 0 {
					t.Errorf("warnings: %v", w)
				}
				if o.File != "" {
					if info, err := os.Stat(o.File); err != nil || info.Mode() != 0o600 {
						t.Errorf("%v, %v, want mode 0600", info, err)
					}
					if all, _ := os.ReadDir(s.dir); len(all) != 4 { // state, two sockets, the key
						t.Errorf("left beside the file: %v", all)
					}
				}
				public := k.Public()
				if err := k.Close(); err != nil {
					t.Error(err)
				}
				_, err := k.Sign(nil, make([]byte, 32), crypto.SHA256)
				if a == signer.ECP384 {
					_, err = k.Sign(nil, make([]byte, 48), crypto.SHA384)
				}
				wants(t, err, ErrClosed)
				s.empty()
				again := s.open(o)
				if !again.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(public) {
					t.Error("another key when opened again")
				}
				signs(t, again)
				if again.Location() != k.Location() {
					t.Errorf("at %q, then at %q", k.Location(), again.Location())
				}

				o.Device = s.socket
				_, err = Create(t.Context(), o, a)
				wants(t, err, ErrExists, k.Location())
				if err := again.Destroy(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.empty()
				_, err = Open(t.Context(), o)
				wants(t, err, ErrNoKey, k.Location())
			})
		}
	}
}

func TestPrinting(t *testing.T) {
	s := newSWTPM(t)
	k := s.create(Options{Handle: handle}, signer.ECP256)
	const want = "ECDSA P-256 key in tpm:handle=0x81010001"
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		if got := fmt.Sprintf(verb, k); got != want {
			t.Errorf("%s: %q, want %q", verb, got, want)
		}
	}
	if got := k.Location(); got != "tpm:handle=0x81010001" {
		t.Errorf("Location() = %q", got)
	}
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		o    Options
		kind error
		word string
	}{
		"neither":   {Options{}, ErrNoKey, "tpm:handle="},
		"both":      {Options{Handle: handle, File: "x"}, ErrUnsupported, "one of them"},
		"transient": {Options{Handle: 0x80000000}, ErrUnsupported, "0x81000000"},
		"beyond":    {Options{Handle: 0x82000000}, ErrUnsupported, "0x81000000"},
		"no device": {Options{Handle: handle, Device: dir + "/none"}, ErrNoDevice, dir + "/none"},
		"no TPM":    {Options{Handle: handle, Device: os.Args[0]}, ErrNoDevice, os.Args[0]},
		"no file":   {Options{File: dir + "/none.pem"}, ErrNoKey, dir + "/none.pem"},
		"directory": {Options{File: dir}, ErrMalformed, dir},
		"nobody":    {Options{Handle: handle, Device: dead(t)}, ErrNoDevice, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), tc.o)
			if name == "nobody" {
				wants(t, err, ErrLost)
				return
			}
			wants(t, err, tc.kind, tc.word)
		})
	}
	_, err := Open(t.Context(), Options{File: dir + "/none.pem"})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
	_, err = Create(t.Context(), Options{Handle: 0x81800000}, signer.ECP256)
	wants(t, err, ErrUnsupported, "0x817fffff")
	_, err = Create(t.Context(), Options{Handle: handle}, "ed25519")
	wants(t, err, ErrUnsupported, "ed25519", "ec-p256")
	_, err = Create(t.Context(), Options{File: dir + "/none/key.pem"}, signer.ECP256)
	wants(t, err, ErrUnwritable, "mkdir")
}

// TestDigests: what is no digest of the key's schemes is refused, and does not reach the TPM.
func TestDigests(t *testing.T) {
	s := newSWTPM(t)
	ec := s.create(Options{File: s.file("ec.pem")}, signer.ECP256)
	rs := s.create(Options{File: s.file("rsa.pem")}, signer.RSA2048)
	for name, f := range map[string]func() ([]byte, error){
		"short":      func() ([]byte, error) { return ec.Sign(nil, []byte("short"), crypto.SHA256) },
		"no hash":    func() ([]byte, error) { return ec.Sign(nil, make([]byte, 32), crypto.Hash(0)) },
		"no options": func() ([]byte, error) { return ec.Sign(nil, make([]byte, 32), nil) },
		"other hash": func() ([]byte, error) { return ec.Sign(nil, make([]byte, 48), crypto.SHA384) },
		"SHA-1":      func() ([]byte, error) { return rs.Sign(nil, make([]byte, 20), crypto.SHA1) },
		"PSS salt 20": func() ([]byte, error) {
			return rs.Sign(nil, make([]byte, 32), &rsa.PSSOptions{SaltLength: 20, Hash: crypto.SHA256})
		},
	} {
		sig, err := f()
		if sig != nil {
			t.Errorf("%s: signed", name)
		}
		wants(t, err, ErrUnsupported)
	}
	signs(t, ec)
}

func TestChain(t *testing.T) {
	s := newSWTPM(t)
	mine := s.create(Options{File: s.file("a.pem")}, signer.ECP256)
	other := s.create(Options{File: s.file("b.pem")}, signer.ECP256)
	issue := func(k *Key) *x509.Certificate {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "me"}, NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(nil, template, template, k.Public(), k)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	leaf, issuer := issue(mine), issue(other)
	mine.Close() // the TPM has three slots: two keys, and a parent while one is loaded
	k := s.open(Options{File: s.file("a.pem"), Chain: []*x509.Certificate{leaf, issuer}})
	if chain := k.CertificateChain(); len(chain) != 2 || !bytes.Equal(chain[0], leaf.Raw) {
		t.Errorf("chain of %d", len(chain))
	}
	k.Close()
	_, err := Open(t.Context(), Options{Device: s.socket, File: s.file("b.pem"), Chain: []*x509.Certificate{leaf}})
	wants(t, err, ErrMismatch, "b.pem")
	other.Close()
	s.empty()
}

// TestParallel: all get their own signature, through two keys on one TPM.
func TestParallel(t *testing.T) {
	s := newSWTPM(t)
	a := s.create(Options{File: s.file("a.pem")}, signer.ECP256)
	b := s.create(Options{Handle: handle, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}, signer.ECP256)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			k := []*Key{a, b}[i%2]
			for range 8 {
				if err := signOnce(k, k.schemes[0]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if a.Stats().Reopened != 0 || b.Stats().Reopened != 0 {
		t.Errorf("opened again: %+v, %+v", a.Stats(), b.Stats())
	}
}

// TestCloseUnderLoad: every caller gets a signature or ErrClosed, and nothing stays behind.
func TestCloseUnderLoad(t *testing.T) {
	s := newSWTPM(t)
	k := s.create(Options{File: s.file("key.pem"), Queue: 100}, signer.ECP256)
	signed := make(chan struct{}, 1)
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for {
				err := signOnce(k, k.schemes[0])
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
				select {
				case signed <- struct{}{}:
				default:
				}
			}
		})
	}
	<-signed
	all.Go(func() { k.Close() })
	k.Close()
	all.Wait()
	k.Close()
	s.empty()
}

// TestOpenIsCutShort: who gives up gets back soon, and nothing goes on.
func TestOpenIsCutShort(t *testing.T) {
	s := newSWTPM(t)
	s.create(Options{Handle: handle}, signer.ECP256).Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Open(ctx, Options{Device: s.socket, Handle: handle})
	wants(t, err, ErrTimeout)
	_, err = Create(ctx, Options{Device: s.socket, File: s.file("key.pem")}, signer.ECP256)
	wants(t, err, ErrTimeout)
	if _, err := os.Stat(s.file("key.pem")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a file: %v", err)
	}
	s.empty()
}

// TestDestroyAnother: a file that holds another key by now is left alone.
func TestDestroyAnother(t *testing.T) {
	s := newSWTPM(t)
	k := s.create(Options{File: s.file("a.pem")}, signer.ECP256)
	s.create(Options{File: s.file("b.pem")}, signer.ECP256)
	if err := os.Rename(s.file("b.pem"), s.file("a.pem")); err != nil {
		t.Fatal(err)
	}
	wants(t, k.Destroy(t.Context()), ErrOtherTPM)
	if _, err := os.Stat(s.file("a.pem")); err != nil {
		t.Error(err)
	}
}

func TestModeWarning(t *testing.T) {
	s := newSWTPM(t)
	s.create(Options{File: s.file("key.pem")}, signer.ECP256)
	if err := os.Chmod(s.file("key.pem"), 0o644); err != nil {
		t.Fatal(err)
	}
	if w := s.open(Options{File: s.file("key.pem")}).Warnings(); len(w) != 1 || !strings.Contains(w[0], "chmod 600") {
		t.Errorf("warnings %q", w)
	}
}

// TestLog: what happens is told, and the password is not.
func TestLog(t *testing.T) {
	s := newSWTPM(t)
	var buffer syncBuffer
	o := Options{File: s.file("key.pem"), Password: &secret{value: "canary-password"}, Logger: slog.New(slog.NewTextHandler(&buffer, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	k := s.create(o, signer.ECP256)
	s.kill()
	s.start()
	eventually(t, k)
	if log := buffer.String(); !strings.Contains(log, "opened again") || strings.Contains(log, "canary") {
		t.Errorf("log: %s", log)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var digest = sha256.Sum256([]byte("a handshake"))
