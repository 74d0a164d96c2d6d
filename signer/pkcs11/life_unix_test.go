//go:build unix

package pkcs11

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// TestClose: it ends signatures under way, waits for the process, and does not need to kill it
// although the library hangs.
func TestClose(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	c := issue(t, "x", k.Public(), time.Now(), nil, k)
	h.fault("hang-C_Sign", "")
	errs := make(chan error)
	for range 8 {
		go func() { errs <- sign(k) }()
	}
	until(t, "the module hangs and others wait", func() bool { return len(h.calls("hang")) == 4 && k.Stats().Queued == 4 })
	check(t, k.Close())
	for range 8 {
		if err := <-errs; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want %v", err, ErrClosed)
		}
	}
	if state := k.link.host.cmd.ProcessState; state == nil || !state.Exited() || state.ExitCode() != 0 {
		t.Errorf("the child: %v: want it to end by itself when its input ends", state)
	}
	check(t, k.Close())
	if err := sign(k); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := k.StoreCertificate(t.Context(), [][]byte{c.Raw}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestCloseWhileReopening: nothing is left of a reopening either.
func TestCloseWhileReopening(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	h.clearLog()
	h.fault("crash-C_Sign", "")
	h.fault("hang-C_Initialize", "")
	errs := make(chan error)
	go func() { errs <- sign(k) }()
	until(t, "the reopening hangs", func() bool { return len(h.calls("hang")) == 1 })
	check(t, k.Close())
	if err := <-errs; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
}

// TestChangeCancelled: a caller need not wait for a token that takes its time.
func TestChangeCancelled(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	c := issue(t, "x", k.Public(), time.Now(), nil, k)
	h.fault("hang-C_CreateObject", "")
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() { errs <- k.StoreCertificate(ctx, [][]byte{c.Raw}) }()
	until(t, "the module hangs", func() bool { return len(h.calls("hang")) == 1 })
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
