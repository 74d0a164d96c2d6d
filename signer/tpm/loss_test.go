//go:build !windows

package tpm

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/execproxy/execproxy/signer"
)

// TestRestart: a TPM that was killed and started again costs no signature, if it is back when
// the next one is wanted; and the time that it is away plus a pause, if it is not.
func TestRestart(t *testing.T) {
	for where, options := range places {
		for _, protected := range []bool{false, true} {
			name := where
			if protected {
				name += "/password"
			}
			t.Run(name, func(t *testing.T) {
				s := newSWTPM(t)
				o := options(s)
				if protected {
					o.Password = &secret{value: "right"}
				}
				var dials atomic.Int32
				o.dial = func(device string) (transport.TPMCloser, error) {
					dials.Add(1)
					return dial(device)
				}
				k := s.create(o, signer.ECP256)
				s.kill()
				s.start()
				begun := time.Now()
				if err := signOnce(k, k.schemes[0]); err != nil {
					t.Fatalf("after a restart: %v", err)
				}
				t.Logf("first signature after a restart: %v", time.Since(begun))
				if n := k.Stats().Reopened; n != 1 && !(where == "handle" && !protected) {
					t.Errorf("opened again %d times, want 1", n)
				}

				s.kill()
				for range 5 { // each after the pause has ended
					k.owner.soon(t, k)
					wants(t, signOnce(k, k.schemes[0]), ErrLost)
				}
				dials.Store(0)
				for range 1000 {
					if err := signOnce(k, k.schemes[0]); !errors.Is(err, ErrLost) {
						t.Fatal(err)
					}
				}
				if n := dials.Load(); n > 2 {
					t.Errorf("1000 failures looked for the TPM %d times", n)
				}
				s.start()
				d := eventually(t, k)
				t.Logf("signs again %v after the TPM is back", d)
				if d > lastPause+time.Second {
					t.Errorf("took %v", d)
				}
				k.Close()
				s.empty()
			})
		}
	}
}

// TestAnotherTPM: what comes back is not the TPM that went.
func TestAnotherTPM(t *testing.T) {
	s := newSWTPM(t)
	file := s.create(Options{File: s.file("key.pem")}, signer.ECP256)
	persistent := s.create(Options{Handle: handle}, signer.ECP256)
	s.kill()
	s.forget()
	s.start()
	wants(t, signOnce(file, file.schemes[0]), ErrOtherTPM, "key.pem")
	wants(t, signOnce(persistent, persistent.schemes[0]), ErrNoKey, "0x81010001")
	for _, o := range []Options{{File: s.file("key.pem")}, {Handle: handle}} {
		o.Device = s.socket
		_, err := Open(t.Context(), o)
		if o.File != "" {
			wants(t, err, ErrOtherTPM, "key.pem")
		} else {
			wants(t, err, ErrNoKey, "0x81010001")
		}
	}
	// Somebody makes another key at the handle: it must not sign in the name of the first.
	s.create(Options{Handle: handle}, signer.ECP256)
	persistent.owner.soon(t, persistent)
	wants(t, signOnce(persistent, persistent.schemes[0]), ErrOtherTPM, "another key")
	file.Close()
	persistent.Close()
	s.empty()
}

// TestForeignHandle: after a restart our handle's number belongs to another program's key. No
// signature of that one comes out, and Close does not flush it.
func TestForeignHandle(t *testing.T) {
	s := newSWTPM(t)
	k := s.create(Options{File: s.file("key.pem")}, signer.ECP256)
	idle := s.create(Options{File: s.file("idle.pem")}, signer.ECP256)
	s.kill()
	s.start()
	raw := s.raw()
	for range 2 { // both of our numbers
		area, err := template(place{}, signer.ECP256, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (tpm2.CreatePrimary{PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}, InPublic: tpm2.New2B(area)}).Execute(raw); err != nil {
			t.Fatal(err)
		}
	}
	idle.Close()
	if err := signOnce(k, k.schemes[0]); err == nil {
		t.Error("three slots, two of them taken: the key cannot have been loaded")
	} else {
		wants(t, err, ErrBusy, "/dev/tpmrm0", "tpm2_flushcontext")
	}
	left := s.tool("tpm2_getcap", "handles-transient")
	if left != "- 0x80000000\n- 0x80000001\n" {
		t.Errorf("another program's keys were flushed: %q left", left)
	}
	flush(raw, 0x80000000)
	flush(raw, 0x80000001)
	eventually(t, k)
	k.Close()
	s.empty()
}

// TestFlushedUnderneath: another program flushes everything (tpm2_flushcontext -t).
func TestFlushedUnderneath(t *testing.T) {
	s := newSWTPM(t)
	for _, o := range []Options{{File: s.file("a.pem")}, {File: s.file("b.pem"), Password: &secret{value: "right"}}} {
		k := s.create(o, signer.ECP256)
		s.tool("tpm2_flushcontext", "--transient-object")
		s.tool("tpm2_flushcontext", "--loaded-session")
		if err := signOnce(k, k.schemes[0]); err != nil {
			t.Error(err)
		}
		s.tool("tpm2_flushcontext", "--loaded-session")
		if err := signOnce(k, k.schemes[0]); err != nil {
			t.Error(err)
		}
		k.Close()
	}
	s.empty()
}

// TestFrozen: the TPM takes commands and does not answer. Callers get their error in time, the
// queue fills and says so, Close returns; thawed, it signs again.
func TestFrozen(t *testing.T) {
	const timeout = 200 * time.Millisecond
	s := newSWTPM(t)
	k := s.create(Options{File: s.file("key.pem"), Queue: 2, Timeout: 5 * time.Second}, signer.ECP256)
	k.Close()
	k = s.open(Options{File: s.file("key.pem"), Queue: 2, Timeout: timeout})
	s.stop(syscall.SIGSTOP)
	defer func() {
		if s.cmd != nil {
			s.stop(syscall.SIGCONT)
		}
	}()
	var mu sync.Mutex
	kinds := map[error]int{}
	var all sync.WaitGroup
	begun := time.Now()
	for range 16 {
		all.Go(func() {
			err := signOnce(k, k.schemes[0])
			mu.Lock()
			defer mu.Unlock()
			for _, kind := range []error{ErrBusy, ErrTimeout} {
				if errors.Is(err, kind) {
					kinds[kind]++
					if kinds[kind] == 1 {
						wants(t, err, kind)
					}
					return
				}
			}
			t.Errorf("got %v", err)
		})
	}
	all.Wait()
	if d := time.Since(begun); d > timeout+time.Second {
		t.Errorf("16 requests took %v, want about %v", d, timeout)
	}
	if kinds[ErrTimeout] < 2 || kinds[ErrBusy] < 1 {
		t.Errorf("got %v, want the queue's two late and others refused", kinds)
	}
	s.stop(syscall.SIGCONT)
	t.Logf("signs again %v after the TPM is thawed", eventually(t, k))
	s.stop(syscall.SIGSTOP)
	begun = time.Now()
	k.Close()
	if d := time.Since(begun); d > 4*closing {
		t.Errorf("Close took %v", d)
	}
	if k.owner.left.stuck() {
		t.Error("a connection is left, though sockets can be interrupted")
	}
}
