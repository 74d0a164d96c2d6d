//go:build !windows

package tpm

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/execproxy/execproxy/signer"
)

// deaf is a device that never answers and cannot be interrupted, like a character device.
type deaf struct {
	transport.TPMCloser
	hang *gate
}

// gate is open or shut.
type gate struct {
	mu      sync.Mutex
	shut    chan struct{} // nil: open
	arrived chan struct{} // closed when someone stands before it
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.arrived = make(chan struct{}), make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

func (g *gate) pass() {
	g.mu.Lock()
	shut, arrived := g.shut, g.arrived
	g.mu.Unlock()
	if shut != nil {
		close(arrived)
		<-shut
	}
}

func (d deaf) Send(b []byte) ([]byte, error) {
	d.hang.pass()
	return d.TPMCloser.Send(b)
}

// TestDeafDevice: requests end in time although the read does not, no second connection is left
// hanging, the device is used again when it hears again, and Close returns although it does not.
func TestDeafDevice(t *testing.T) {
	s := newSWTPM(t)
	s.create(Options{File: s.file("key.pem")}, signer.ECP256).Close()
	var hang gate
	var dials atomic.Int32
	k := s.open(Options{File: s.file("key.pem"), Timeout: 100 * time.Millisecond,
		dial: func(device string) (transport.TPMCloser, error) {
			dials.Add(1)
			// The embedding hides interrupt.
			return deaf{struct{ transport.TPMCloser }{newSocket(device)}, &hang}, nil
		}})
	hang.close()
	begun := time.Now()
	wants(t, signOnce(k, k.schemes[0]), ErrTimeout)
	if d := time.Since(begun); d > time.Second {
		t.Errorf("took %v", d)
	}
	for range 3 {
		k.owner.soon(t, k)
		wants(t, signOnce(k, k.schemes[0]), ErrTimeout, "hangs")
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections hang, want 1", n)
	}
	hang.open()
	eventually(t, k)
	if n := dials.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
	hang.close()
	begun = time.Now()
	k.Close()
	if d := time.Since(begun); d > 4*closing {
		t.Errorf("Close took %v", d)
	}
	hang.open()
}

// TestCloseWhileHanging: Close does not wait for a long Timeout.
func TestCloseWhileHanging(t *testing.T) {
	s := newSWTPM(t)
	s.create(Options{File: s.file("key.pem")}, signer.ECP256).Close()
	var hang gate
	k := s.open(Options{File: s.file("key.pem"), Timeout: time.Hour,
		dial: func(device string) (transport.TPMCloser, error) {
			return deaf{struct{ transport.TPMCloser }{newSocket(device)}, &hang}, nil
		}})
	hang.close()
	failed := make(chan error, 1)
	go func() { failed <- signOnce(k, k.schemes[0]) }()
	<-hang.arrived
	begun := time.Now()
	k.Close()
	if d := time.Since(begun); d > 4*closing {
		t.Errorf("Close took %v", d)
	}
	wants(t, <-failed, ErrClosed)
	hang.open()
}

// TestQueueIsNotTheLimit: a long queue makes requests late, and does not cut short the command
// that is under way: that would cost the key, and the next ones their time.
func TestQueueIsNotTheLimit(t *testing.T) {
	s := newSWTPM(t)
	s.create(Options{File: s.file("key.pem")}, signer.ECP256).Close()
	var hang gate
	var dials atomic.Int32
	k := s.open(Options{File: s.file("key.pem"),
		dial: func(device string) (transport.TPMCloser, error) {
			dials.Add(1)
			return deaf{struct{ transport.TPMCloser }{newSocket(device)}, &hang}, nil
		}})
	hang.close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-hang.arrived
		cancel()
	}()
	sum := digest
	_, err := k.do(ctx, k.timeout, func(ctx context.Context) ([]byte, error) { return k.owner.sign(ctx, k.schemes[0], sum[:]) })
	wants(t, err, ErrTimeout)
	hang.open()
	if err := signOnce(k, k.schemes[0]); err != nil {
		t.Error(err)
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// busy answers with a code that asks for patience before it does what it is told.
type busy struct {
	transport.TPMCloser
	code  tpm2.TPMRC
	times int
}

func (b *busy) Send(command []byte) ([]byte, error) {
	if b.times > 0 {
		b.times--
		return append([]byte{0x80, 0x01, 0, 0, 0, 10}, byte(b.code>>24), byte(b.code>>16), byte(b.code>>8), byte(b.code)), nil
	}
	return b.TPMCloser.Send(command)
}

// TestBusy: TPMs that ask for patience get it, as long as the time lasts.
func TestBusy(t *testing.T) {
	s := newSWTPM(t)
	s.create(Options{File: s.file("key.pem")}, signer.ECP256).Close()
	for _, code := range []tpm2.TPMRC{tpm2.TPMRCRetry, tpm2.TPMRCYielded, tpm2.TPMRCTesting, tpm2.TPMRCNVRate, tpm2.TPMRCNVUnavailable} {
		b := &busy{TPMCloser: newSocket(s.socket), code: code, times: 5}
		o := Options{File: s.file("key.pem"), dial: func(string) (transport.TPMCloser, error) { return b, nil }}
		k := s.open(o)
		signs(t, k)
		k.Close()
		b.times = 1 << 30
		o.Timeout = 20 * time.Millisecond
		_, err := Open(t.Context(), o)
		wants(t, err, ErrTimeout)
	}
}

// mad is a TPM whose answers make no sense.
type mad struct {
	transport.TPMCloser
	answer *[]byte // nil: the real one
}

func (m mad) Send(command []byte) ([]byte, error) {
	if *m.answer != nil {
		return *m.answer, nil
	}
	return m.TPMCloser.Send(command)
}

func TestMad(t *testing.T) {
	s := newSWTPM(t)
	s.create(Options{File: s.file("key.pem")}, signer.ECP256).Close()
	var answer []byte
	k := s.open(Options{File: s.file("key.pem"), dial: func(device string) (transport.TPMCloser, error) {
		return mad{newSocket(device), &answer}, nil
	}})
	for _, nonsense := range [][]byte{{}, {0x80}, make([]byte, 10), make([]byte, 4096),
		{0x80, 2, 0, 0, 0, 10, 0, 0, 0, 0}, {0x80, 2, 0, 0, 0, 14, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}} {
		_, err := k.do(t.Context(), k.timeout, func(context.Context) ([]byte, error) { answer = nonsense; return nil, nil })
		if err != nil {
			t.Fatal(err)
		}
		k.owner.soon(t, k)
		wants(t, signOnce(k, k.schemes[0]), ErrLost)
		_, err = k.do(t.Context(), k.timeout, func(context.Context) ([]byte, error) { answer = nil; return nil, nil })
		if err != nil {
			t.Fatal(err)
		}
		k.owner.soon(t, k)
		if err := signOnce(k, k.schemes[0]); err != nil {
			t.Fatalf("after an answer of %d bytes: %v", len(nonsense), err)
		}
		if n := strings.Count(s.tool("tpm2_getcap", "handles-transient"), "\n"); n > 1 {
			s.tool("tpm2_flushcontext", "--transient-object") // what it was could not be known
		}
	}
}

// refusing is a TPM that answers every signature with a code.
type refusing struct {
	transport.TPMCloser
	code tpm2.TPMRC
}

func (r refusing) Send(command []byte) ([]byte, error) {
	if tpm2.TPMCC(command[9]) == tpm2.TPMCCSign&0xff {
		return (&busy{code: r.code, times: 1}).Send(command)
	}
	return r.TPMCloser.Send(command)
}

// TestCreateLeavesNothing: a key that turns out to be useless is no key.
func TestCreateLeavesNothing(t *testing.T) {
	s := newSWTPM(t)
	for _, options := range places {
		o := options(s)
		o.Device = s.socket
		o.dial = func(device string) (transport.TPMCloser, error) {
			return refusing{newSocket(device), tpm2.TPMRCScheme | 0x240}, nil
		}
		_, err := Create(t.Context(), o, signer.RSA2048)
		wants(t, err, ErrUnsupported, "no scheme of TLS")
		o.dial = nil
		_, err = Open(t.Context(), o)
		wants(t, err, ErrNoKey)
	}
	s.empty()
}

// TestPanic: what go-tpm cannot stand does not end the process.
func TestPanic(t *testing.T) {
	s := newSWTPM(t)
	k := s.create(Options{Handle: handle}, signer.ECP256)
	_, err := k.do(t.Context(), k.timeout, func(context.Context) ([]byte, error) { panic("nil dereference") })
	wants(t, err, ErrLost)
	eventually(t, k)
}
