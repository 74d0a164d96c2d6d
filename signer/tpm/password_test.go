//go:build !windows

package tpm

import (
	"bytes"
	"context"
	"crypto/fips140"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/execproxy/execproxy/signer"
)

func TestPassword(t *testing.T) {
	for where, options := range places {
		for _, a := range []signer.Algorithm{signer.ECP256, signer.RSA2048} {
			t.Run(where+"/"+string(a), func(t *testing.T) {
				t.Parallel()
				s := newSWTPM(t)
				o := options(s)
				right := &secret{value: "right"}
				o.Password = right
				k := s.create(o, a)
				signs(t, k)
				k.Close()
				s.empty()
				right.accepted = 0
				signs(t, s.open(o))
				if right.accepted != 1 {
					t.Errorf("%d times told that the password was right, want 1", right.accepted)
				}
				if n := s.variable("TPM2_PT_LOCKOUT_COUNTER"); n != 0 {
					t.Errorf("%d wrong passwords counted", n)
				}
			})
		}
	}
}

// TestWrongPassword: it is tried once, and the TPM counts one.
func TestWrongPassword(t *testing.T) {
	for where, options := range places {
		for _, stubborn := range []bool{false, true} {
			name := where
			if stubborn {
				name += "/stubborn"
			}
			t.Run(name, func(t *testing.T) {
				s := newSWTPM(t)
				o := options(s)
				o.Password = &secret{value: "right"}
				s.create(o, signer.ECP256).Close()

				wrong := &secret{value: "canary-wrong", stubborn: stubborn}
				o.Password, o.Device = wrong, s.socket
				before := s.variable("TPM2_PT_LOCKOUT_COUNTER")
				_, err := Open(t.Context(), o)
				wants(t, err, ErrPassword, "locks itself after 2 more")
				if strings.Contains(err.Error(), "canary") {
					t.Errorf("the password is in the error: %v", err)
				}
				if n := s.variable("TPM2_PT_LOCKOUT_COUNTER"); n != before+1 || wrong.refused != 1 {
					t.Errorf("counted %d, told %d times, want one each", n-before, wrong.refused)
				}
				s.empty()
			})
		}
	}
}

// TestPasswordGoesWrong: the password file is rewritten while the key is in use, and the TPM
// restarts. The wrong one is tried once, however many signatures are wanted; the right one
// mends it.
func TestPasswordGoesWrong(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		s := newSWTPM(t)
		password := &secret{value: "right", stubborn: stubborn}
		k := s.create(Options{File: s.file("key.pem"), Password: password}, signer.ECP256)
		password.set("wrong")
		s.kill()
		s.start()
		before := s.variable("TPM2_PT_LOCKOUT_COUNTER")
		var err error
		for range 10 {
			k.owner.soon(t, k)
			err = signOnce(k, k.schemes[0])
			if err == nil {
				t.Fatal("signed with a wrong password")
			}
		}
		wants(t, err, ErrPassword)
		if n := s.variable("TPM2_PT_LOCKOUT_COUNTER"); n != before+1 || password.refused != 1 {
			t.Errorf("counted %d, told %d times, want one each", n-before, password.refused)
		}
		password.set("right")
		eventually(t, k)
		k.Close()
		s.empty()
	}
}

// soon ends the pause in which the owner does not look for the TPM.
func (w *owner) soon(t *testing.T, k *Key) {
	t.Helper()
	_, err := k.do(t.Context(), k.timeout, func(context.Context) ([]byte, error) {
		w.until = w.until.AddDate(-1, 0, 0)
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoPassword: a key that has one is not opened without.
func TestNoPassword(t *testing.T) {
	s := newSWTPM(t)
	file, handle := Options{File: s.file("key.pem")}, Options{Handle: handle}
	for _, o := range []Options{file, handle} {
		o.Password = &secret{value: "right"}
		s.create(o, signer.ECP256).Close()
	}
	file.Device, handle.Device = s.socket, s.socket
	_, err := Open(t.Context(), file)
	wants(t, err, ErrPassword, "none was given")
	if n := s.variable("TPM2_PT_LOCKOUT_COUNTER"); n != 0 {
		t.Errorf("a file that says it has a password was tried without: counted %d", n)
	}
	_, err = Open(t.Context(), handle) // only trying tells
	wants(t, err, ErrPassword, "none was given")
	s.empty()
}

// TestNeedlessPassword: a key without one does not care, and none is asked for.
func TestNeedlessPassword(t *testing.T) {
	s := newSWTPM(t)
	s.create(Options{File: s.file("key.pem")}, signer.ECP256).Close()
	p := &secret{value: "needless"}
	signs(t, s.open(Options{File: s.file("key.pem"), Password: p}))
	if p.given != 0 || p.refused != 0 {
		t.Errorf("asked for %d times, refused %d times", p.given, p.refused)
	}
}

// TestLockout: another program has locked the TPM. The right password is not tried, a key
// without password works on, and clearing the lockout mends it.
func TestLockout(t *testing.T) {
	s := newSWTPM(t)
	right := &secret{value: "right"}
	o := Options{File: s.file("key.pem"), Password: right}
	s.create(o, signer.ECP256).Close()
	free := s.create(Options{File: s.file("free.pem")}, signer.ECP256)
	s.tool("tpm2_dictionarylockout", "--setup-parameters", "--max-tries=1", "--recovery-time=120", "--lockout-recovery-time=120")
	o.Device = s.socket
	wrong := o
	wrong.Password = &secret{value: "wrong"}
	_, err := Open(t.Context(), wrong)
	wants(t, err, ErrPassword, "locks itself after 0 more")
	for range 3 {
		_, err = Open(t.Context(), o)
		wants(t, err, ErrLockout, "2m0s", "tpm2_dictionarylockout --clear-lockout")
	}
	if right.refused != 0 {
		t.Error("the right password was called wrong")
	}
	if n := s.variable("TPM2_PT_LOCKOUT_COUNTER"); n != 1 {
		t.Errorf("%d wrong passwords counted", n)
	}
	signs(t, free)
	s.tool("tpm2_dictionarylockout", "--clear-lockout")
	signs(t, s.open(o))
}

// TestLockoutInUse: the lockout comes while the key is loaded.
func TestLockoutInUse(t *testing.T) {
	s := newSWTPM(t)
	password := &secret{value: "right"}
	o := Options{File: s.file("key.pem"), Password: password}
	k := s.create(o, signer.ECP256)
	s.tool("tpm2_dictionarylockout", "--setup-parameters", "--max-tries=1", "--recovery-time=120", "--lockout-recovery-time=120")
	o.Device, o.Password = s.socket, &secret{value: "wrong"}
	_, err := Open(t.Context(), o)
	wants(t, err, ErrPassword)
	wants(t, signOnce(k, k.schemes[0]), ErrLockout, "2m0s")
	wants(t, signOnce(k, k.schemes[0]), ErrLockout, "2m0s")
	if password.refused != 0 || k.Stats().Reopened != 0 {
		t.Errorf("refused %d, %+v", password.refused, k.Stats())
	}
	s.tool("tpm2_dictionarylockout", "--clear-lockout")
	eventually(t, k)
}

// TestBadNewPasswords are refused before a key is made.
func TestBadNewPasswords(t *testing.T) {
	s := newSWTPM(t)
	for name, value := range map[string]string{"empty": "", "long": strings.Repeat("x", 33), "zero": "x\x00"} {
		_, err := Create(t.Context(), Options{Device: s.socket, File: s.file(name), Password: &secret{value: value}}, signer.ECP256)
		wants(t, err, ErrPassword)
	}
	longest := &secret{value: strings.Repeat("x", 32)}
	signs(t, s.create(Options{File: s.file("key.pem"), Password: longest}, signer.ECP256))
}

// TestPasswordStaysOffTheBus listens on it.
func TestPasswordStaysOffTheBus(t *testing.T) {
	s := newSWTPM(t)
	var heard tap
	for where, options := range places {
		o := options(s)
		o.Password, o.dial = &secret{value: "canary-password"}, heard.dial
		k := s.create(o, signer.ECP256)
		signs(t, k)
		if heard.contains("canary") {
			t.Errorf("%s: the password went over the bus", where)
		}
		k.Close()
	}
	if !heard.contains("\x00\x00\x01\x5d") { // TPM_CC_Sign
		t.Error("the tap heard nothing")
	}
}

// swallowing is a TPM whose connection breaks after each signature, before the answer.
type swallowing struct {
	*socket
	on    *atomic.Bool
	signs *atomic.Int32
}

func (w swallowing) Send(command []byte) ([]byte, error) {
	answer, err := w.socket.Send(command)
	if command[9] == 0x5d { // TPM_CC_Sign
		w.signs.Add(1)
		if w.on.Load() {
			return nil, io.EOF
		}
	}
	return answer, err
}

// TestUnknownOutcome: the connection broke while a password was tried for the first time. It may
// have been counted, so it is not tried again for the same request.
func TestUnknownOutcome(t *testing.T) {
	s := newSWTPM(t)
	var on atomic.Bool
	var n atomic.Int32
	k := s.create(Options{File: s.file("key.pem"), Password: &secret{value: "right"},
		dial: func(device string) (transport.TPMCloser, error) {
			return swallowing{newSocket(device), &on, &n}, nil
		}}, signer.ECP256)
	on.Store(true)
	for _, want := range []int32{2, 1} { // what worked before is tried again; what is new is not
		k.owner.soon(t, k)
		n.Store(0)
		wants(t, signOnce(k, k.schemes[0]), ErrLost)
		if n.Load() != want {
			t.Errorf("signed %d times, want %d", n.Load(), want)
		}
	}
	on.Store(false)
	eventually(t, k)
	k.Close()
	s.empty()
}

// TestEnforcedFIPS: where AES-CFB is forbidden no key is made with a password, with an error and
// not a panic; one that has a password is used.
func TestEnforcedFIPS(t *testing.T) {
	if fips140.Enforced() {
		s := newSWTPM(t)
		_, err := Create(t.Context(), Options{Device: s.socket, Handle: handle, Password: &secret{value: "x"}}, signer.ECP256)
		wants(t, err, ErrUnsupported, "fips140=on")
		s.prepare("tpm2_createprimary", "-C", "o", "-c", "parent.ctx")
		s.prepare("tpm2_create", "-C", "parent.ctx", "-G", "ecc256", "-p", "right", "-c", "k.ctx")
		s.prepare("tpm2_evictcontrol", "-C", "o", "-c", "k.ctx", "0x81010001")
		signs(t, s.open(Options{Handle: handle, Password: &secret{value: "right"}}))
		return
	}
	need(t, "swtpm", "swtpm")
	need(t, "tpm2_create", "tpm2-tools")
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	again := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestEnforcedFIPS$", "-test.v")
	again.Env = append(os.Environ(), "GODEBUG=fips140=only")
	out, err := again.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("AES-CFB")) {
		t.Errorf("%v\n%s", err, out)
	}
}
