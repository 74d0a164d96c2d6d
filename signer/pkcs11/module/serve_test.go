package module

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"go.uber.org/goleak"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client speaks with a serve of its own.
type client struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *io.PipeReader
	done chan error
}

func start(t *testing.T, h handler) *client {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := &client{t: t, in: inW, out: outR, done: make(chan error, 1)}
	go func() { c.done <- serve(inR, outW, h) }()
	if f := c.read(); f.Kind != wire.KindHello || f.ID != 0 || !bytes.Equal(f.Body, wire.Magic) {
		t.Fatalf("got %+v, want a hello", f)
	}
	t.Cleanup(func() { _ = inR.Close(); _ = outR.Close() })
	return c
}

func (c *client) read() wire.Frame {
	c.t.Helper()
	f, err := wire.Read(c.out)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

func (c *client) write(f wire.Frame) {
	c.t.Helper()
	if err := wire.Write(c.in, f); err != nil {
		c.t.Fatal(err)
	}
}

// TestServeOverlaps: a request that hangs does not hold up others, nor the end.
func TestServeOverlaps(t *testing.T) {
	hang := make(chan struct{})
	ended := make(chan struct{})
	c := start(t, func(kind wire.Kind, body []byte) (wire.Message, error) {
		if kind == wire.KindSign {
			<-hang
			close(ended)
		}
		return &wire.Signature{Signature: bytes.Clone(body)}, nil
	})
	c.write(wire.Frame{ID: 1, Kind: wire.KindSign})
	c.write(wire.Frame{ID: 2, Kind: wire.KindUse, Body: []byte("x")})
	f := c.read()
	var m wire.Signature
	if err := wire.Decode(f.Body, &m); err != nil || f.ID != 2 || f.Kind != wire.KindDone || string(m.Signature) != "x" {
		t.Errorf("got %+v, %v", f, err)
	}
	_ = c.in.Close()
	if err := <-c.done; err != nil {
		t.Errorf("at the end of its input: %v", err)
	}
	_ = c.out.Close()
	close(hang)
	<-ended
}

func TestServeFails(t *testing.T) {
	want := &wire.Failed{Problem: wire.ProblemCall, Call: "C_Sign", CKR: 0x30}
	errs := []error{want, errors.New("a bug")}
	c := start(t, func(kind wire.Kind, _ []byte) (wire.Message, error) { return nil, errs[kind] })
	for i, want := range []wire.Failed{*want, {Problem: wire.ProblemRequest, Detail: "a bug"}} {
		c.write(wire.Frame{ID: 7, Kind: wire.Kind(i)})
		f := c.read()
		var got wire.Failed
		if err := wire.Decode(f.Body, &got); err != nil || f.ID != 7 || f.Kind != wire.KindFailed || got != want {
			t.Errorf("got %+v %+v, %v, want %+v", f, got, err, want)
		}
	}
	go func() { _, _ = c.in.Write([]byte("usage: something\n")) }() // it reads as far as it must
	if err := <-c.done; err == nil {
		t.Error("it takes anything for a request")
	}
}

// TestPINIsWiped: the frame it came in does not keep it.
func TestPINIsWiped(t *testing.T) {
	f := wire.Frame{Kind: wire.KindStart, Body: wire.Encode(&wire.Start{PIN: []byte("1234")})}
	answer(f, func(wire.Kind, []byte) (wire.Message, error) { return nil, nil })
	if bytes.Contains(f.Body, []byte("1234")) {
		t.Error("the PIN stays in the frame")
	}
}

// TestHandler: requests that come too early are errors, whatever the build; none panics.
func TestHandler(t *testing.T) {
	h := newHandler()
	for kind := range wire.KindFailed + 2 {
		for _, body := range [][]byte{nil, wire.Encode(&wire.Use{}), wire.Encode(&wire.Sign{}), wire.Encode(&wire.Store{}),
			wire.Encode(&wire.Generate{}), wire.Encode(&wire.Start{}), wire.Encode(&wire.TokensRequest{Module: "/nowhere/x.so"})} {
			if m, err := h(kind, body); err == nil {
				t.Errorf("request %d with %x: %+v", kind, body, m)
			}
		}
	}
	if err := Available(); err != nil {
		var failed *wire.Failed
		if _, err := h(wire.KindTokens, nil); !errors.As(err, &failed) || failed.Problem != wire.ProblemNoCGO {
			t.Errorf("got %v", err)
		}
	}
}
