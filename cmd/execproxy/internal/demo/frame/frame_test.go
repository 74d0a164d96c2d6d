package frame_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/frame"
)

func TestRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 127, 65535, frame.Max} {
		for _, mask := range []bool{false, true} {
			want := bytes.Repeat([]byte("x"), n)
			var b bytes.Buffer
			if err := frame.Write(&b, frame.Binary, want, mask); err != nil {
				t.Fatal(err)
			}
			if mask && n > 8 && bytes.Contains(b.Bytes(), want[:8]) {
				t.Errorf("%d bytes: a masked frame shows its payload", n)
			}
			op, got, wasMasked, err := frame.Read(&b)
			if err != nil || op != frame.Binary || !bytes.Equal(got, want) || wasMasked != mask {
				t.Errorf("%d bytes, mask %v: got op %d, %d bytes, mask %v, %v", n, mask, op, len(got), wasMasked, err)
			}
			if b.Len() != 0 {
				t.Errorf("%d bytes: %d bytes left over", n, b.Len())
			}
		}
	}
}

func TestLimits(t *testing.T) {
	if err := frame.Write(io.Discard, frame.Text, make([]byte, frame.Max+1), false); err == nil {
		t.Error("an oversized frame was written")
	}
	for name, c := range map[string]struct {
		in   string
		want error
	}{
		"nothing":           {"", io.EOF},
		"half a head":       {"\x81", io.ErrUnexpectedEOF},
		"no length":         {"\x81\x7e\x01", io.ErrUnexpectedEOF},
		"no payload":        {"\x81\x05", io.ErrUnexpectedEOF},
		"no mask":           {"\x81\x85", io.ErrUnexpectedEOF},
		"fragment":          {"\x01\x00", frame.ErrUnsupported},
		"continuation":      {"\x80\x00", frame.ErrUnsupported},
		"reserved bit":      {"\xc1\x00", frame.ErrUnsupported},
		"an absurd length":  {"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff", nil},
		"one byte too many": {"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x01", nil},
	} {
		_, _, _, err := frame.Read(strings.NewReader(c.in))
		if err == nil || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// The example of RFC 6455, section 1.3.
func TestAccept(t *testing.T) {
	if got := frame.Accept("dGhlIHNhbXBsZSBub25jZQ=="); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Error(got)
	}
	if a, b := frame.NewKey(), frame.NewKey(); a == b || len(a) != 24 {
		t.Errorf("keys %q, %q", a, b)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x81\x05hello"))
	f.Add([]byte("\x81\x85\x01\x02\x03\x04hello"))
	f.Add([]byte("\x82\x7e\x00\x01x"))
	f.Fuzz(func(t *testing.T, in []byte) {
		op, payload, _, err := frame.Read(bytes.NewReader(in))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := frame.Write(&b, op, payload, true); err != nil {
			t.Fatal(err)
		}
		op2, again, _, err := frame.Read(&b)
		if err != nil || op2 != op || !bytes.Equal(again, payload) {
			t.Fatalf("written and read again: %d %q %v, want %d %q", op2, again, err, op, payload)
		}
	})
}
