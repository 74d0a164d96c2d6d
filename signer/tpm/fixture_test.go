//go:build !windows

package tpm

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
	"go.uber.org/goleak"

	"github.com/execproxy/execproxy/signer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// need finds a program of a Debian package.
func need(t testing.TB, program, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("no %s: apt-get install %s", program, pkg)
	}
	t.Skipf("no %s: apt-get install %s", program, pkg)
	return ""
}

// swtpm is a software TPM that can be killed and started again.
type swtpm struct {
	t      testing.TB
	dir    string // short: sockets live in it
	socket string
	cmd    *exec.Cmd
	log    bytes.Buffer
}

func newSWTPM(t testing.TB) *swtpm {
	t.Helper()
	need(t, "swtpm", "swtpm")
	dir, err := os.MkdirTemp("", "tpm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &swtpm{t: t, dir: dir, socket: filepath.Join(dir, "s")}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *swtpm) state() string { return filepath.Join(s.dir, "state") }

// start returns when the TPM answers. Without state it is a new one.
func (s *swtpm) start() {
	s.t.Helper()
	if err := os.MkdirAll(s.state(), 0o700); err != nil {
		s.t.Fatal(err)
	}
	s.cmd = exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+s.state(),
		"--server", "type=unixio,path="+s.socket+",mode=0600",
		"--ctrl", "type=unixio,path="+s.socket+".ctrl,mode=0600",
		"--flags", "not-need-init,startup-clear")
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for tick, end := time.NewTicker(time.Millisecond), time.Now().Add(patience); ; <-tick.C {
		conn, err := net.Dial("unix", s.socket)
		if err == nil {
			conn.Close()
			tick.Stop()
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("swtpm does not listen: %v\n%s", err, s.log.Bytes())
		}
	}
}

// kill ends the TPM as a power cut does.
func (s *swtpm) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
	// A killed swtpm leaves its sockets.
	os.Remove(s.socket)
	os.Remove(s.socket + ".ctrl")
}

// forget takes the TPM's state away: what starts next is another TPM.
func (s *swtpm) forget() {
	if err := os.RemoveAll(s.state()); err != nil {
		s.t.Fatal(err)
	}
}

// stop freezes the TPM: it accepts, and never answers.
func (s *swtpm) stop(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// prepare runs programs before a key of ours is open, and cleans up behind them: tpm2-tools
// count on a resource manager for that.
func (s *swtpm) prepare(args ...string) {
	s.t.Helper()
	s.tool(args...)
	s.tool("tpm2_flushcontext", "--transient-object")
	s.tool("tpm2_flushcontext", "--loaded-session")
}

// tool runs one of tpm2-tools, or openssl, on this TPM.
func (s *swtpm) tool(args ...string) string {
	s.t.Helper()
	pkg := "tpm2-tools"
	if args[0] == "openssl" {
		pkg = "openssl tpm2-openssl"
	}
	need(s.t, args[0], pkg)
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "TPM2TOOLS_TCTI=swtpm:path="+s.socket, "TPM2OPENSSL_TCTI=swtpm:path="+s.socket)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// variable reads one of the TPM's variable properties with tpm2_getcap.
func (s *swtpm) variable(name string) int {
	s.t.Helper()
	m := regexp.MustCompile(name + `: 0x([0-9A-Fa-f]+)`).FindStringSubmatch(s.tool("tpm2_getcap", "properties-variable"))
	if m == nil {
		s.t.Fatalf("no property %s", name)
	}
	n, err := strconv.ParseInt(m[1], 16, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return int(n)
}

// empty fails the test where somebody's handles are left in the TPM.
func (s *swtpm) empty() {
	s.t.Helper()
	for _, kind := range []string{"handles-transient", "handles-loaded-session"} {
		if left := strings.TrimSpace(s.tool("tpm2_getcap", kind)); left != "" {
			s.t.Errorf("left in the TPM, %s: %s", kind, left)
		}
	}
}

func (s *swtpm) file(name string) string { return filepath.Join(s.dir, name) }

// create makes a key, and closes it when the test ends.
func (s *swtpm) create(o Options, a signer.Algorithm) *Key {
	s.t.Helper()
	o.Device = s.socket
	k, err := Create(s.t.Context(), o, a)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { k.Close() })
	return k
}

func (s *swtpm) open(o Options) *Key {
	s.t.Helper()
	o.Device = s.socket
	k, err := Open(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { k.Close() })
	return k
}

// raw is a connection for what the tests do themselves.
func (s *swtpm) raw() *line {
	l := newLine(newSocket(s.socket))
	s.t.Cleanup(func() { l.close(patience) })
	return l
}

// secret is a password source that counts.
type secret struct {
	mu       sync.Mutex
	value    string
	given    int
	refused  int
	accepted int
	stubborn bool // gives out what was refused
}

func (s *secret) Secret(context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused > 0 && !s.stubborn {
		return nil, errors.New("the password was refused: write the right one")
	}
	s.given++
	return []byte(s.value), nil
}

func (s *secret) Refused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused++
}

func (s *secret) Accepted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted++
}

// set is a human who writes another password.
func (s *secret) set(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.refused = value, 0
}

// signs signs with every scheme, and lets the standard library verify.
func signs(t testing.TB, k *Key) {
	t.Helper()
	if len(k.SupportedSignatureAlgorithms()) == 0 {
		t.Errorf("%v: no scheme", k)
	}
	for _, s := range k.schemes {
		if err := signOnce(k, s); err != nil {
			t.Errorf("%v, %v: %v", k, s.id, err)
		}
	}
}

func signOnce(k *Key, s scheme) error {
	digest := make([]byte, s.hash.Size())
	_, _ = rand.Read(digest)
	var opts crypto.SignerOpts = s.hash
	pss := &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: s.hash}
	isPSS := s.id == tls.PSSWithSHA256 || s.id == tls.PSSWithSHA384 || s.id == tls.PSSWithSHA512
	if isPSS {
		opts = pss
	}
	sig, err := k.Sign(nil, digest, opts)
	if err != nil {
		return err
	}
	switch public := k.Public().(type) {
	case *ecdsa.PublicKey:
		if !ecdsa.VerifyASN1(public, digest, sig) {
			return errors.New("signature is not valid")
		}
		return nil
	case *rsa.PublicKey:
		if isPSS {
			return rsa.VerifyPSS(public, s.hash, digest, sig, pss)
		}
		return rsa.VerifyPKCS1v15(public, s.hash, digest, sig)
	}
	return errors.New("no public key")
}

// wants checks that an error is of a kind, and says something.
func wants(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	var e *Error
	if !errors.Is(err, kind) || !errors.As(err, &e) {
		t.Errorf("got %v, want *Error %v", err, kind)
		return
	}
	t.Log(err)
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// eventually signs until it works, and tells how long that took.
func eventually(t testing.TB, k *Key) time.Duration {
	t.Helper()
	begun := time.Now()
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		err := signOnce(k, k.schemes[0])
		if err == nil {
			tick.Stop()
			return time.Since(begun)
		}
		if time.Since(begun) > patience {
			t.Fatalf("still: %v", err)
		}
	}
}

// dead is the socket of a TPM that has gone.
func dead(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tpm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	return path
}

// tap is a listener on the bus.
type tap struct {
	mu    sync.Mutex
	heard bytes.Buffer
}

type tapped struct {
	*socket
	tap *tap
}

func (p *tap) dial(path string) (transport.TPMCloser, error) { return tapped{newSocket(path), p}, nil }

func (p tapped) Send(command []byte) ([]byte, error) {
	p.tap.mu.Lock()
	p.tap.heard.Write(command)
	p.tap.mu.Unlock()
	return p.socket.Send(command)
}

func (p *tap) contains(s string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.heard.Bytes(), []byte(s))
}
