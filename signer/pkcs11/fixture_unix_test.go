//go:build unix

package pkcs11

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/pkcs11/module"
)

const (
	userPIN = "pin-2718"
	// patience is for what must happen, and takes as long as the machine is slow.
	patience = 30 * time.Second
)

// program returns where a program is. Without it the test fails in CI and is skipped
// elsewhere.
func program(t testing.TB, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, name, debian)
	}
	return path
}

func missing(t testing.TB, what, debian string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is missing: apt-get install %s", what, debian)
	}
	t.Skipf("%s is missing: apt-get install %s", what, debian)
}

// softhsm is a SoftHSM of its own, seen through the shim, which can have faults.
type softhsm struct {
	t       testing.TB
	dir     string
	library string // SoftHSM's
	shim    string // ours
	env     []string
	stderr  *syncBuffer
}

func newSoftHSM(t testing.TB) *softhsm {
	t.Helper()
	if err := module.Available(); err != nil {
		t.Skip(err)
	}
	program(t, "softhsm2-util", "softhsm2")
	h := &softhsm{t: t, dir: t.TempDir(), stderr: &syncBuffer{}}
	for _, path := range []string{"/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so",
		"/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so", "/opt/homebrew/lib/softhsm/libsofthsm2.so"} {
		if _, err := os.Stat(path); err == nil {
			h.library = path
			break
		}
	}
	if h.library == "" {
		missing(t, "libsofthsm2.so", "softhsm2")
	}
	program(t, "gcc", "gcc")
	var err error
	h.shim, err = shim()
	check(t, err)
	check(t, os.MkdirAll(filepath.Join(h.dir, "tokens"), 0o700))
	conf := filepath.Join(h.dir, "softhsm2.conf")
	check(t, os.WriteFile(conf, fmt.Appendf(nil, "directories.tokendir = %s/tokens\nobjectstore.backend = file\nlog.level = ERROR\n", h.dir), 0o600))
	// p11-kit's proxy module loads all that the machine has; one of them makes a store
	// in the working directory where it is told of none.
	h.env = []string{"TPM2_PKCS11_STORE=" + h.dir, "SOFTHSM2_CONF=" + conf, "SHIM_MODULE=" + h.library, "SHIM_DIR=" + h.dir, childVariable + "=module",
		"GORACE=atexit_sleep_ms=0"} // the race detector waits for a second at the end of each process
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the children wrote:\n%.4000s", h.stderr.String())
		}
	})
	return h
}

var (
	shimDir string // removed at the end of all tests
	shim    = sync.OnceValues(func() (path string, err error) {
		if shimDir, err = os.MkdirTemp("", "pkcs11-shim-"); err != nil {
			return "", err
		}
		path = filepath.Join(shimDir, "shim.so")
		out, err := exec.Command("gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, "testdata/shim.c", "-ldl").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("gcc: %w: %s", err, out)
		}
		return path, err
	})
)

// token makes a token, and the key test on it where an algorithm is given.
func (h *softhsm) token(label string, algorithm signer.Algorithm) {
	h.t.Helper()
	h.run("softhsm2-util", "--init-token", "--free", "--label", label, "--so-pin", "0000", "--pin", userPIN)
	if algorithm != "" {
		k := h.create("pkcs11:token="+label+";object=test", algorithm)
		check(h.t, k.Close())
	}
}

func (h *softhsm) create(uri string, algorithm signer.Algorithm) *Key {
	h.t.Helper()
	o := h.options(uri)
	k, err := Create(h.context(), o, algorithm)
	check(h.t, err)
	return k
}

func (h *softhsm) run(name string, args ...string) string {
	h.t.Helper()
	cmd := exec.CommandContext(h.context(), name, args...)
	cmd.Env = append(os.Environ(), h.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// tool runs OpenSC's pkcs11-tool, logged in.
func (h *softhsm) tool(args ...string) string {
	h.t.Helper()
	program(h.t, "pkcs11-tool", "opensc")
	return h.run("pkcs11-tool", append([]string{"--module", h.library, "--login", "--pin", userPIN}, args...)...)
}

func (h *softhsm) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

func (h *softhsm) options(uri string) Options {
	h.t.Helper()
	parsed, err := ParseURI(uri)
	check(h.t, err)
	return Options{URI: parsed, Module: h.shim, PIN: &secret{pin: userPIN}, Command: []string{os.Args[0]}, Environ: h.env,
		Stderr: h.stderr, Timeout: patience}
}

// open opens a key, and closes it at the end of the test.
func (h *softhsm) open(uri string, change ...func(*Options)) *Key {
	h.t.Helper()
	o := h.options(uri)
	for _, f := range change {
		f(&o)
	}
	k, err := Open(h.context(), o)
	check(h.t, err)
	h.t.Cleanup(func() { check(h.t, k.Close()) })
	return k
}

// openErr returns why a key does not open.
func (h *softhsm) openErr(uri string, change ...func(*Options)) error {
	h.t.Helper()
	o := h.options(uri)
	for _, f := range change {
		f(&o)
	}
	k, err := Open(h.context(), o)
	if err == nil {
		_ = k.Close()
		h.t.Fatalf("%s: opened %v", uri, k)
	}
	return err
}

// fault switches a fault of the shim on, or off.
func (h *softhsm) fault(name, value string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	check(h.t, os.WriteFile(path+"~", []byte(value), 0o600))
	check(h.t, os.Rename(path+"~", path))
}

func (h *softhsm) mend(name string) {
	h.t.Helper()
	check(h.t, os.Remove(filepath.Join(h.dir, name)))
}

// calls returns the lines of the shim's log that begin so.
func (h *softhsm) calls(prefix string) (lines []string) {
	log, err := os.ReadFile(filepath.Join(h.dir, "log"))
	check(h.t, err)
	for line := range strings.Lines(string(log)) {
		if strings.HasPrefix(line, prefix+" ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func (h *softhsm) clearLog() { check(h.t, os.WriteFile(filepath.Join(h.dir, "log"), nil, 0o600)) }

// secret is a PIN that counts what happens to it.
type secret struct {
	mu             sync.Mutex
	pin            string
	human          bool
	asked, refused int
	accepted       int
}

func (s *secret) Accepted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted++
}

func (s *secret) Secret(context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return []byte(s.pin), nil
}

func (s *secret) Refused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused++
}

func (s *secret) Human() bool { return s.human }

func (s *secret) set(pin string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pin = pin
}

func (s *secret) counts() (asked, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.refused
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

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sign makes one signature and verifies it.
func sign(k *Key) error {
	digest := sha256.Sum256([]byte("message"))
	sig, err := k.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return err
	}
	ok := false
	switch public := k.Public().(type) {
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(public, digest[:], sig)
	case *rsa.PublicKey:
		ok = rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], sig) == nil
	}
	if !ok {
		return fmt.Errorf("the signature does not verify")
	}
	return nil
}

// until waits for what tells nobody when it happens.
func until(t testing.TB, what string, reached func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !reached(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// issue makes a certificate for public; nil for an issuer makes it self-signed by key.
func issue(t testing.TB, name string, public crypto.PublicKey, from time.Time, parent *x509.Certificate, key crypto.Signer) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	check(t, err)
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: from.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	check(t, err)
	c, err := x509.ParseCertificate(der)
	check(t, err)
	return c
}

var _ interface {
	SupportedSignatureAlgorithms() []tls.SignatureScheme
} = (*Key)(nil)
