package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// messages are one of each kind, with every field set.
func messages() []Message {
	token := Token{Slot: 1 << 40, Label: "main", Serial: "1", Model: "m", Manufacturer: "x", SlotDescription: "d", SlotManufacturer: "s", Flags: 0x40d}
	certificate := Certificate{ID: []byte{1}, Label: []byte("test"), DER: []byte("der")}
	return []Message{
		&TokensRequest{Module: "/usr/lib/x.so"},
		&Tokens{LibraryManufacturer: "a", LibraryDescription: "b", LibraryVersion: "2.40", Tokens: []Token{token, token}},
		&Start{Token: token, Sessions: 4, Wait: 5e9, Login: true, PIN: []byte("1234")},
		&Keys{Keys: []Key{{ID: []byte{1}, Label: []byte("test"), Public: []byte("pkix"), Always: true, Problem: "p"}}, Certificates: []Certificate{certificate}},
		&Use{Index: 3},
		&Sign{Hash: 5, PSS: true, Salt: 32, Digest: []byte("digest")},
		&Signature{Signature: []byte("signature")},
		&Generate{Algorithm: "ec-p256", ID: []byte{1}, Label: []byte("test")},
		&Store{Write: []Certificate{certificate}, Delete: []Certificate{certificate, certificate}},
		&Failed{Problem: ProblemCall, Call: "C_Sign", CKR: 0x30, Detail: "d"},
	}
}

func empty(m Message) Message { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message) }

func TestMessages(t *testing.T) {
	for _, m := range messages() {
		body := Encode(m)
		got := empty(m)
		if err := Decode(body, got); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("got %+v, %v, want %+v", got, err, m)
		}
		for n := range body {
			if Decode(body[:n], empty(m)) == nil {
				t.Errorf("%T: decoded the first %d of %d bytes", m, n, len(body))
			}
		}
		if Decode(append(body, 0), empty(m)) == nil {
			t.Errorf("%T: decoded with a byte too many", m)
		}
	}
}

// FuzzDecode: what a library's process writes does no harm, and has one meaning.
func FuzzDecode(f *testing.F) {
	all := messages()
	for i, m := range all {
		f.Add(uint8(i), Encode(m))
	}
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		m := empty(all[int(kind)%len(all)])
		if Decode(body, m) == nil && !bytes.Equal(Encode(m), body) {
			t.Errorf("%T: decoded %x, encoded %x", m, body, Encode(m))
		}
	})
}

func TestFrames(t *testing.T) {
	frames := []Frame{{1, KindSign, []byte("body")}, {0xffffffff, KindDone, []byte{}}, {2, KindKeys, make([]byte, MaxFrame-header)}}
	var b bytes.Buffer
	for _, f := range frames {
		if err := Write(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	r := iotest.OneByteReader(bytes.NewReader(b.Bytes()))
	for _, want := range frames {
		if got, err := Read(r); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %.60v, %v", got, err)
		}
	}
	if _, err := Read(r); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
	if err := Write(&b, Frame{Body: make([]byte, MaxFrame)}); err == nil {
		t.Error("wrote a frame that nobody reads")
	}
}

func TestReadRefuses(t *testing.T) {
	var whole bytes.Buffer
	if err := Write(&whole, Frame{1, KindSign, []byte("body")}); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < whole.Len(); n++ {
		if _, err := Read(bytes.NewReader(whole.Bytes()[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of a frame: %v, want %v", n, err, io.ErrUnexpectedEOF)
		}
	}
	for what, text := range map[string]string{"a text": "usage: something else\n", "no room for a kind": "\x00\x00\x00\x04abcd"} {
		if _, err := Read(strings.NewReader(text)); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The length is judged before memory is taken.
	huge := binary.BigEndian.AppendUint32(nil, 1<<32-1)
	if n := testing.AllocsPerRun(10, func() { _, _ = Read(bytes.NewReader(huge)) }); n > 4 {
		t.Errorf("%v allocations", n)
	}
}

// TestWriteWipes: a PIN does not stay in a buffer of ours.
func TestWriteWipes(t *testing.T) {
	var kept []byte
	w := writer(func(p []byte) (int, error) { kept = p; return len(p), nil })
	if err := Write(w, Frame{Body: []byte("1234")}); err != nil || bytes.Contains(kept, []byte("1234")) {
		t.Errorf("%q, %v", kept, err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x05\x00\x00\x00\x01\x06"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		var again bytes.Buffer
		for {
			frame, err := Read(r)
			if err != nil {
				break
			}
			if err := Write(&again, frame); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(data, again.Bytes()) {
			t.Errorf("read %x, wrote %x", data, again.Bytes())
		}
	})
}
