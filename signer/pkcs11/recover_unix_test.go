//go:build unix

package pkcs11

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
)

const testKey = "pkcs11:token=main;object=test"

// parallel signs with so many at once, each so often. All must succeed.
func parallel(t testing.TB, k *Key, signers, each int) {
	t.Helper()
	var wg sync.WaitGroup
	for range signers {
		wg.Go(func() {
			for range each {
				if err := sign(k); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestRecovers: what happens once costs no signature at all.
func TestRecovers(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	var log syncBuffer
	k := h.open(testKey, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	reopened := uint64(0)
	for _, fault := range []string{"crash-C_Sign", "crash-C_SignInit", "close-all-C_SignInit",
		"C_SignInit 3", "C_SignInit 5", "C_SignInit 6", "C_SignInit 30", "C_SignInit 32", "C_SignInit 60", "C_SignInit 82", "C_SignInit 90",
		"C_SignInit B0", "C_SignInit B3", "C_SignInit E0", "C_SignInit 101", "C_SignInit 190", "C_SignInit 80000001", "C_Sign 30", "C_Sign 91"} {
		name, value, _ := strings.Cut(fault, " ")
		h.fault(name+".once", value)
		began := time.Now()
		if err := sign(k); err != nil {
			t.Errorf("%s: %v", fault, err)
		}
		t.Logf("%s: signed after %v", fault, time.Since(began).Round(time.Millisecond))
		if reopened++; k.Stats().Reopened != reopened {
			t.Fatalf("%s: opened again %d times, want %d", fault, k.Stats().Reopened, reopened)
		}
	}
	// What no opening mends is not tried again.
	for _, fault := range []string{"C_SignInit 70", "C_SignInit 68", "C_SignInit 20"} {
		name, value, _ := strings.Cut(fault, " ")
		h.fault(name+".once", value)
		if err := sign(k); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", fault, err)
		}
	}
	if got := k.Stats().Reopened; got != reopened {
		t.Errorf("opened again %d times, want %d", got, reopened)
	}
	if text := log.String(); strings.Count(text, "token opened again") != int(reopened) || strings.Contains(text, userPIN) {
		t.Errorf("log:\n%s", text)
	}
	check(t, k.Close())
}

// TestRecoversOnce: all that sign while the module crashes share one new process.
func TestRecoversOnce(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	h.clearLog()
	h.fault("crash-C_Sign.once", "")
	parallel(t, k, 16, 8)
	if n := k.Stats().Reopened; n != 1 || len(h.calls("C_Login")) != 1 {
		t.Errorf("opened again %d times with %d logins, want one of each", n, len(h.calls("C_Login")))
	}
	if s := k.Stats(); s.Queued != 0 {
		t.Errorf("%d still wait", s.Queued)
	}
}

// TestFailsFast: a module that always crashes costs few processes, and none is left.
func TestFailsFast(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	h.fault("crash-C_Sign", "")
	if err := sign(k); !errors.Is(err, ErrCrashed) || !strings.Contains(err.Error(), "module "+h.shim) {
		t.Fatalf("got %v, want %v", err, ErrCrashed)
	}
	if k.Stats().Reopened != 1 {
		t.Errorf("opened again %d times, want once", k.Stats().Reopened)
	}
	for _, want := range []time.Duration{firstHold, 2 * firstHold, 4 * firstHold, 8 * firstHold, 16 * firstHold, lastHold, lastHold} {
		k.mu.Lock()
		if left := time.Until(k.again); k.hold != want || left > want {
			t.Errorf("it is held for %v, %v from now, want %v", k.hold, left, want)
		}
		k.again = time.Now().Add(time.Hour)
		k.mu.Unlock()
		h.clearLog()
		for range 100 {
			if err := sign(k); !errors.Is(err, ErrCrashed) {
				t.Fatalf("got %v", err)
			}
		}
		if n := len(h.calls("C_Initialize")); n != 0 {
			t.Errorf("%d processes while it is held", n)
		}
		k.mu.Lock()
		k.again = time.Now()
		k.mu.Unlock()
		if err := sign(k); !errors.Is(err, ErrCrashed) {
			t.Fatalf("got %v", err)
		}
		// Each signature has two tries, and the library is initialised three times in each process.
		if n := len(h.calls("C_Initialize")); n != 2*3 {
			t.Errorf("C_Initialize %d times, want two processes", n)
		}
	}
	h.mend("crash-C_Sign")
	began := time.Now()
	until(t, "it signs again", func() bool { return sign(k) == nil })
	t.Logf("signed again %v after the repair", time.Since(began).Round(time.Millisecond))
	if k.hold != 0 {
		t.Errorf("the next loss begins with a delay of %v", k.hold)
	}
}

// TestHang: the signature that hangs fails in time, and the next one finds a new process.
func TestHang(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey, func(o *Options) { o.Timeout = 2 * time.Second })
	h.fault("hang-C_Sign.once", "")
	began := time.Now()
	err := sign(k)
	if took := time.Since(began); !errors.Is(err, ErrHung) || took < 1900*time.Millisecond || took > patience/2 {
		t.Fatalf("after %v: %v, want %v", took, err, ErrHung)
	}
	if want := "module " + h.shim + ": the module does not answer: not within 2s"; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got  %v\nwant %s…", err, want)
	}
	// Another of its sessions may answer in the moment before the process is ended.
	until(t, "it signs again, in another process", func() bool { return sign(k) == nil && k.Stats().Reopened > 0 })
	if k.Stats().Reopened != 1 {
		t.Errorf("opened again %d times, want once", k.Stats().Reopened)
	}
	// All sessions hang: those that wait for one fail in time, too.
	h.fault("hang-C_Sign", "")
	var wg sync.WaitGroup
	began = time.Now()
	for range 12 {
		wg.Go(func() {
			if err := sign(k); !errors.Is(err, ErrHung) && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrLost) {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > patience/2 {
		t.Errorf("took %v", took)
	}
	h.mend("hang-C_Sign")
	until(t, "it signs again", func() bool { return sign(k) == nil })
}

// TestQueue: a slow token is no hanging one.
func TestQueue(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	for range k.o.Sessions { // as signatures under way hold them
		k.sessions <- struct{}{}
	}
	k.o.Timeout = 50 * time.Millisecond
	if err := sign(k); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, want %v", err, ErrBusy)
	}
	if k.link.host.dead() != nil || k.Stats().Queued != 0 {
		t.Errorf("after a wait for a session: %v, %+v", k.link.host.dead(), k.Stats())
	}
	k.o.Timeout = patience
	done := make(chan error)
	go func() { done <- sign(k) }()
	until(t, "it queues", func() bool { return k.Stats().Queued == 1 })
	<-k.sessions
	check(t, <-done)
	for range k.o.Sessions - 1 {
		<-k.sessions
	}
}

// TestReopenHangs: a reopening has a time limit, too.
func TestReopenHangs(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey, func(o *Options) { o.Timeout = time.Second })
	h.fault("hang-C_Initialize", "")
	h.fault("crash-C_Sign.once", "")
	began := time.Now()
	if err := sign(k); err == nil || time.Since(began) > patience/2 {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	h.mend("hang-C_Initialize")
	until(t, "it signs again", func() bool { return sign(k) == nil })
}

// TestTokenGone: the token directory is renamed away and back.
func TestTokenGone(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	tokens := filepath.Join(h.dir, "tokens")
	check(t, os.Rename(tokens, tokens+"-away"))
	var err error
	until(t, "signatures fail", func() bool { err = sign(k); return err != nil })
	t.Logf("away: %v", err)
	if !errors.Is(err, ErrNoToken) && !errors.Is(err, ErrLost) {
		t.Errorf("got %v", err)
	}
	check(t, os.Rename(tokens+"-away", tokens))
	began := time.Now()
	until(t, "it signs again", func() bool { return sign(k) == nil })
	if took := time.Since(began); took > lastHold+patience/4 {
		t.Errorf("it took %v", took)
	}
	t.Logf("back: signed after %v", time.Since(began).Round(time.Millisecond))
}

// TestOtherKeyComesBack: the same name is not the same key.
func TestOtherKeyComesBack(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", "")
	check(t, h.create(testKey+";id=%01", signer.ECP256).Close())
	k := h.open(testKey)
	check(t, h.open(testKey).Destroy(t.Context()))
	check(t, h.create(testKey+";id=%01", signer.ECP256).Close())
	var err error
	until(t, "signatures fail", func() bool { err = sign(k); return err != nil })
	if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "came back with another key") {
		t.Errorf("got %v", err)
	}
}

// TestServerGone: p11-kit's server, through which tokens of other machines are used, is
// killed and started again.
func TestServerGone(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	p11kit := program(t, "p11-kit", "p11-kit")
	client := ""
	for _, path := range []string{"/usr/lib/x86_64-linux-gnu/pkcs11/p11-kit-client.so", "/usr/lib/aarch64-linux-gnu/pkcs11/p11-kit-client.so", "/usr/lib64/pkcs11/p11-kit-client.so"} {
		if _, err := os.Stat(path); err == nil {
			client = path
		}
	}
	if client == "" {
		missing(t, "p11-kit-client.so", "p11-kit-modules")
	}
	dir, err := os.MkdirTemp("", "p11") // paths of sockets are short
	check(t, err)
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	serve := func() (stop func()) {
		cmd := exec.Command(p11kit, "server", "--provider", h.library, "-n", socket, "-f", "pkcs11:token=main")
		cmd.Env = append(os.Environ(), h.env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it forks for each connection
		check(t, cmd.Start())
		until(t, "the server listens", func() bool { _, err := os.Stat(socket); return err == nil })
		return func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
			_ = os.Remove(socket)
		}
	}
	stop := serve()
	defer func() { stop() }()
	k := h.open(testKey, func(o *Options) {
		o.Module = client
		o.Environ = append(o.Environ, "P11_KIT_SERVER_ADDRESS=unix:path="+socket, "XDG_RUNTIME_DIR="+dir)
	})
	check(t, sign(k))
	for range 2 {
		stop()
		if err := sign(k); err == nil {
			t.Fatal("it signs without a server")
		} else {
			t.Logf("gone: %v", err)
		}
		stop = serve()
		began := time.Now()
		until(t, "it signs again", func() bool { return sign(k) == nil })
		t.Logf("back: signed after %v", time.Since(began).Round(time.Millisecond))
	}
}

// TestPrints: what the library prints to standard output is no answer.
func TestPrints(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	h.fault("print-C_Initialize", "")
	h.fault("print-C_SignInit", "")
	k := h.open(testKey)
	check(t, sign(k))
	if k.Stats().Reopened != 0 || !strings.Contains(h.stderr.String(), "hello from the module") {
		t.Errorf("opened again %d times; Options.Stderr got %q", k.Stats().Reopened, h.stderr.String())
	}
}

// TestSessions: however many sign, few sessions are opened.
func TestSessions(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	h.clearLog()
	k := h.open(testKey, func(o *Options) { o.Sessions = 4 })
	parallel(t, k, 32, 20)
	opened, closed := len(h.calls("open")), len(h.calls("close"))
	if opened > 4+2 || opened < 4 || closed > 0 {
		t.Errorf("%d sessions opened, %d closed: want 4 to 6 and none", opened, closed)
	}
	t.Logf("%d sessions", opened)
}

// TestSmallToken: a token with few sessions, or one that cannot be written to.
func TestSmallToken(t *testing.T) {
	for name, fault := range map[string][2]string{"one session": {"max-sessions", "1"}, "two sessions": {"max-sessions", "2"},
		"three sessions": {"max-sessions", "3"}, "write-protected": {"token-flags", "2"}} {
		t.Run(name, func(t *testing.T) {
			h := newSoftHSM(t)
			h.token("main", signer.RSA2048)
			h.clearLog()
			h.fault(fault[0], fault[1])
			k := h.open(testKey)
			parallel(t, k, 8, 2)
			if len(k.SupportedSignatureAlgorithms()) != 6 {
				t.Errorf("schemes %v", k.SupportedSignatureAlgorithms())
			}
			if opened := len(h.calls("open")); fault[0] == "max-sessions" && opened > int(fault[1][0]-'0') {
				t.Errorf("%d sessions opened", opened)
			}
			if name != "three sessions" {
				err := k.StoreCertificate(t.Context(), [][]byte{issue(t, "x", k.Public(), time.Now(), nil, k).Raw})
				if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "write-protected") {
					t.Errorf("storing a certificate: %v", err)
				}
			}
		})
	}
}

// TestStrangeDigests are refused here, before they get to the library.
func TestStrangeDigests(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	h.clearLog()
	for _, opts := range []crypto.SignerOpts{nil, crypto.Hash(0), crypto.SHA256, crypto.Hash(999)} {
		if _, err := k.Sign(nil, make([]byte, 31), opts); err == nil {
			t.Errorf("%v: signed 31 bytes", opts)
		}
	}
	if n := len(h.calls("C_Sign")); n != 0 {
		t.Errorf("the library was asked %d times", n)
	}
	// A digest longer than the curve's order is cut, as FIPS 186-5 says.
	if _, err := k.Sign(nil, bytes.Repeat([]byte{1}, 64), crypto.SHA512); err != nil {
		t.Errorf("SHA-512 with P-256: %v", err)
	}
}

var _ fmt.Formatter = (*Key)(nil)
