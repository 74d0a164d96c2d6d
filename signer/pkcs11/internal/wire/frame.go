// Package wire is what a program and its PKCS#11 child say to each other: frames over the
// child's standard input and output, and the messages in them.
//
// A frame is a length, the number of the request it belongs to, a kind and a body. Requests
// overlap, and answers come in any order. Lengths are limited before memory is taken for
// them: the child runs a vendor's library, so what it writes is judged like a stranger's.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Version is what Hello names. Both sides are the same binary, except after an upgrade
// under a running program.
const Version = 1

// MaxFrame is the longest frame, its length field not counted. The largest message holds
// the certificates of a token.
const MaxFrame = 1 << 20

// A Kind says what a frame's body is.
type Kind uint8

// The kinds of frames.
const (
	KindHello Kind = iota + 1 // child: body is Magic
	KindTokens
	KindStart
	KindKeys
	KindUse
	KindSign
	KindGenerate
	KindStore
	KindDestroy
	KindDone   // child: the answer, its body depends on the request
	KindFailed // child: the body is a Failed
)

// Magic is the body of the first frame a child writes. It tells it from a program that was
// named by mistake and prints a usage text.
var Magic = []byte{'p', 'k', 'c', 's', '1', '1', Version}

// A Frame is one request or one answer.
type Frame struct {
	ID   uint32
	Kind Kind
	Body []byte
}

const header = 4 + 1 // ID, Kind

var errTooLong = fmt.Errorf("frame is longer than %d bytes", MaxFrame)

// Write writes f with one call of w.Write, and wipes its own copy: the body may hold a PIN.
func Write(w io.Writer, f Frame) error {
	n := header + len(f.Body)
	if n > MaxFrame {
		return errTooLong
	}
	b := make([]byte, 4+n)
	binary.BigEndian.PutUint32(b, uint32(n))
	binary.BigEndian.PutUint32(b[4:], f.ID)
	b[8] = byte(f.Kind)
	copy(b[9:], f.Body)
	_, err := w.Write(b)
	clear(b)
	return err
}

// Read reads a frame. It returns io.EOF only between two frames.
func Read(r io.Reader) (Frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		return Frame{}, errTooLong
	}
	if n < header {
		return Frame{}, errors.New("frame is too short")
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return Frame{ID: binary.BigEndian.Uint32(b), Kind: Kind(b[4]), Body: b[header:]}, nil
}
