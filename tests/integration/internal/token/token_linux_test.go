package token

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// need fails the test for an error; one that only means that a program is not
// installed fails it in CI and skips it elsewhere.
func need(t *testing.T, err error) {
	t.Helper()
	var missing *MissingError
	if errors.As(err, &missing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// short is a directory whose sockets have short paths.
func short(t *testing.T) string {
	dir, err := os.MkdirTemp("", "ept-")
	need(t, err)
	t.Cleanup(func() { need(t, os.RemoveAll(dir)) })
	return dir
}

func newToken(t *testing.T, dir string) (*SoftHSM, *Token) {
	t.Helper()
	hsm, err := NewSoftHSM(dir)
	need(t, err)
	token, err := hsm.InitToken(t.Context(), "execproxy", "1234")
	need(t, err)
	return hsm, token
}

// verifies signs with the key and checks the signature against its public key.
func verifies(t *testing.T, key crypto.Signer) {
	t.Helper()
	digest := sha256.Sum256([]byte("to be signed"))
	signature, err := key.Sign(rand.Reader, digest[:], crypto.SHA256)
	need(t, err)
	switch public := key.Public().(type) {
	case *ecdsa.PublicKey:
		if !ecdsa.VerifyASN1(public, digest[:], signature) {
			t.Error("the ECDSA signature does not verify")
		}
	case *rsa.PublicKey:
		need(t, rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], signature))
	default:
		t.Errorf("a public key of type %T", public)
	}
	if _, err := key.Sign(rand.Reader, digest[:], &rsa.PSSOptions{Hash: crypto.SHA256}); err == nil {
		t.Error("signed PSS, which it does not know")
	}
}

func TestSoftHSM(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	hsm, token := newToken(t, short(t))
	twin, err := hsm.InitToken(ctx, token.Label, "5678")
	need(t, err)
	if token.Serial == "" || token.Serial == twin.Serial || token.Slot == twin.Slot {
		t.Errorf("two tokens with one label: serial numbers %q and %q, slots %d and %d", token.Serial, twin.Serial, token.Slot, twin.Slot)
	}
	for id, kind := range map[string]string{"01": "EC:prime256v1", "02": "EC:secp384r1", "03": "rsa:2048"} {
		need(t, token.GenerateKey(ctx, id, "key-"+id, kind))
		key, err := token.Signer(ctx, id)
		need(t, err)
		verifies(t, key)
	}
	ca, err := pki.NewCA("ca")
	need(t, err)
	key, err := token.Signer(ctx, "01")
	need(t, err)
	cert, err := ca.Certify(key.Public(), pki.Options{CommonName: "jane"})
	need(t, err)
	need(t, token.WriteCertificate(ctx, "01", "key-01", cert))
	objects, err := token.Tool(ctx, "--list-objects", "--type", "cert")
	if err != nil || !bytes.Contains(objects, []byte("CN=jane")) {
		t.Errorf("the token's certificates: %v\n%s", err, objects)
	}
	if _, err := twin.Signer(ctx, "01"); err == nil {
		t.Error("the token's twin has its key")
	}
	need(t, hsm.Hide())
	if _, err := token.Signer(ctx, "01"); err == nil {
		t.Error("the key is there while the token is hidden")
	}
	need(t, hsm.Show())
	if _, err := token.Signer(ctx, "01"); err != nil {
		t.Errorf("after Show: %v", err)
	}
}

// list uses a module as a client of p11-kit or of a shim does.
func list(ctx context.Context, module string, env ...map[string]string) ([]byte, error) {
	all := map[string]string{}
	for _, e := range env {
		for name, value := range e {
			all[name] = value
		}
	}
	return run(ctx, all, "pkcs11-tool", "--module", module, "--token-label", "execproxy", "--login", "--pin", "1234",
		"--list-objects", "--type", "privkey")
}

func TestP11Kit(t *testing.T) {
	t.Parallel()
	dir, ctx := short(t), t.Context()
	_, token := newToken(t, dir)
	need(t, token.GenerateKey(ctx, "01", "the-key", "EC:prime256v1"))
	p, err := StartP11Kit(ctx, dir, token)
	need(t, err)
	t.Cleanup(p.Stop)
	if out, err := list(ctx, p.Module, p.Env()); err != nil || !bytes.Contains(out, []byte("the-key")) {
		t.Fatalf("through the server: %v\n%s", err, out)
	}

	// A client that stays connected, with a process of the server's for it.
	client := exec.Command("pkcs11-tool", "--module", p.Module, "--token-label", "execproxy", "--login", "--pin", "1234",
		"--sign", "--mechanism", "ECDSA", "--id", "01", "--output-file", filepath.Join(dir, "out"))
	client.Env = environ(p.Env())
	stdin, err := client.StdinPipe()
	need(t, err)
	need(t, proc.StartCmd(client))
	var served []int
	within(t, func() error {
		if served = children(p.proc.PID()); len(served) == 0 {
			return errors.New("the server has no process for its client")
		}
		return nil
	})
	group := p.proc.PID()
	p.Kill()
	if err := syscall.Kill(-group, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("processes of the server are left after Kill: %v", err)
	}
	_, _ = stdin.Write(make([]byte, 32))
	need(t, stdin.Close())
	if err := client.Wait(); err == nil {
		t.Error("the client signed without a server")
	}
	if _, err := list(ctx, p.Module, p.Env()); err == nil {
		t.Error("a client got through to a server that was killed")
	}
	need(t, p.Start(ctx))
	if out, err := list(ctx, p.Module, p.Env()); err != nil || !bytes.Contains(out, []byte("the-key")) {
		t.Errorf("through the server that was started again: %v\n%s", err, out)
	}
	p.Stop()
	if _, err := os.Stat(p.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left after Stop: %v", err)
	}
}

func within(t *testing.T, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestSWTPM(t *testing.T) {
	t.Parallel()
	dir, ctx := short(t), t.Context()
	s, err := StartSWTPM(ctx, dir)
	need(t, err)
	t.Cleanup(s.Stop)
	keys := map[uint32]struct{ kind, password string }{
		0x81010001: {"ecc256", ""}, 0x81010002: {"ecc384", "secret"}, 0x81010003: {"rsa2048", ""},
	}
	for handle, key := range keys {
		need(t, s.GenerateKey(ctx, handle, key.kind, key.password))
	}
	file := filepath.Join(dir, "key.pem")
	need(t, s.GenerateKeyFile(ctx, file, "ecc256", "secret"))
	data, err := os.ReadFile(file)
	need(t, err)
	if block, _ := pem.Decode(data); block == nil || block.Type != "TSS2 PRIVATE KEY" {
		t.Errorf("the key file: %s", data)
	}
	for _, when := range []string{"made", "after a power failure"} {
		for handle, key := range keys {
			signer, err := s.Signer(ctx, handle, key.password)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			verifies(t, signer)
		}
		if out, err := s.Tool(ctx, "tpm2_getcap", "handles-transient"); err != nil || len(out) > 0 {
			t.Errorf("%s: objects are left in the TPM: %v\n%s", when, err, out)
		}
		s.Kill()
		if _, err := s.Tool(ctx, "tpm2_getcap", "handles-transient"); err == nil {
			t.Error("a TPM that was killed answers")
		}
		need(t, s.Start(ctx))
	}
	wrong, err := s.Signer(ctx, 0x81010002, "wrong")
	need(t, err)
	if _, err := wrong.Sign(rand.Reader, make([]byte, 32), crypto.SHA256); err == nil {
		t.Error("signed with a wrong password")
	}
	s.Stop()
	for _, socket := range []string{s.Socket, s.control()} {
		if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left after Stop: %v", socket, err)
		}
	}
}

func TestShim(t *testing.T) {
	t.Parallel()
	dir, ctx := short(t), t.Context()
	hsm, token := newToken(t, dir)
	need(t, token.GenerateKey(ctx, "01", "the-key", "EC:prime256v1"))
	built, err := BuildShim(ctx, dir)
	need(t, err)
	s, err := NewShim(dir, built, hsm.Module)
	need(t, err)
	in := filepath.Join(dir, "in")
	need(t, os.WriteFile(in, make([]byte, 32), 0o600))
	use := func() (string, error) {
		out, err := run(ctx, hsm.Env(), "pkcs11-tool", "--module", s.Module, "--token-label", "execproxy", "--login", "--pin", "1234",
			"--sign", "--mechanism", "ECDSA", "--id", "01", "--input-file", in, "--output-file", filepath.Join(dir, "out"))
		return string(out), err
	}
	for n := 1; n <= 2; n++ {
		if out, err := use(); err != nil {
			t.Fatalf("without rules: %v\n%s", err, out)
		}
		for _, function := range []string{"C_Initialize", "C_Login", "C_SignInit", "C_Sign"} {
			if got, err := s.Calls(function); err != nil || got != n {
				t.Errorf("%d calls of %s, %v; want %d", got, function, err, n)
			}
		}
	}

	for _, c := range []struct {
		function string
		rule     Rule
		want     string // in the error, or in the output where the tool succeeds
		fails    bool
	}{
		{"C_Login", Return(0xa4), "CKR_PIN_LOCKED", true},
		{"C_SignInit", Return(0x30), "CKR_DEVICE_ERROR", true},
		{"C_OpenSession", Return(0xe0), "CKR_TOKEN_NOT_PRESENT", true},
		{"C_Sign", Crash, "segmentation fault", true},
		{"C_Sign", CloseSessions, "CKR_SESSION_HANDLE_INVALID", true},
		{"C_Sign", Print, "a word from the vendor", false},
		{"C_GetTokenInfo", "nonsense", "aborted", true},
		{"C_Sign", Flags(1), "aborted", true}, // flags are the token's alone
	} {
		t.Run(fmt.Sprintf("%s %s", c.function, c.rule), func(t *testing.T) {
			need(t, s.Set(c.function, c.rule))
			out, err := use()
			if err != nil {
				out = err.Error()
			}
			if (err != nil) != c.fails || !strings.Contains(out, c.want) {
				t.Errorf("got %v, %s\nwant %s", err, out, c.want)
			}
			need(t, s.Set(c.function, Once(c.rule)))
			if _, err := use(); (err != nil) != c.fails {
				t.Errorf("once: %v", err)
			}
			if out, err := use(); err != nil || strings.Contains(out, c.want) {
				t.Errorf("the rule for once was followed twice: %v\n%s", err, out)
			}
		})
	}

	need(t, s.Set("C_GetTokenInfo", Flags(0x40000)))
	slots, err := run(ctx, hsm.Env(), "pkcs11-tool", "--module", s.Module, "--list-token-slots")
	if err != nil || !bytes.Contains(slots, []byte("user PIN locked")) {
		t.Errorf("with the flag for a locked PIN: %v\n%s", err, slots)
	}
	need(t, s.Set("C_GetTokenInfo", ""))
	need(t, s.Set("C_GetTokenInfo", "")) // nothing to take away is no error

	before, err := s.Calls("C_Sign")
	need(t, err)
	need(t, s.Set("C_Sign", Hang))
	hung, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := run(hung, hsm.Env(), "pkcs11-tool", "--module", s.Module, "--token-label", "execproxy", "--login", "--pin", "1234",
			"--sign", "--mechanism", "ECDSA", "--id", "01", "--input-file", in)
		ended <- err
	}()
	need(t, s.Await(ctx, "C_Sign", before+1))
	select {
	case err := <-ended:
		t.Errorf("ended, which should hang: %v", err)
	default:
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that hung: %v", err)
	}
	over, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := s.Await(over, "C_Sign", before+2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for what does not come: %v", err)
	}
}

func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := run(t.Context(), nil, "tpm2_sign")
	for name, got := range map[string]error{
		"tpm2-tools": err,
		"opensc":     second(program("pkcs11-tool")),
		"gcc":        second(program("gcc")),
		"softhsm2":   second(library("libsofthsm2.so", t.TempDir()+"/")),
	} {
		var missing *MissingError
		if !errors.As(got, &missing) || missing.Package != name || !strings.Contains(got.Error(), "apt-get install "+name) {
			t.Errorf("got %v, want that package %s is missing", got, name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestShortSockets(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("/tmp", strings.Repeat("x", 100))
	if _, err := StartSWTPM(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("a socket in a directory with a long name: %v", err)
	}
}
