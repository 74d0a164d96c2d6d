// Package frame reads and writes single WebSocket frames (RFC 6455, section 5): just enough for the two ends of the
// demonstration to speak over an upgraded connection. No extensions, no fragments, payloads up to Max bytes.
package frame

import (
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455, section 4.2.2, fixes SHA-1; nothing secret depends on it
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Opcodes of RFC 6455, section 5.2.
const (
	Text   byte = 0x1
	Binary byte = 0x2
	Close  byte = 0x8
)

// Max is the largest payload Read accepts, in bytes.
const Max = 1 << 16

// ErrUnsupported is returned for a frame that is legal WebSocket, but more than the demonstration speaks.
var ErrUnsupported = errors.New("fragmented or extended frame")

const (
	final    = 0x80
	reserved = 0x70
	masked   = 0x80
	len16    = 126
	len64    = 127
)

// Write writes one final frame. A client must mask (RFC 6455, section 5.1), a server must not.
func Write(w io.Writer, op byte, payload []byte, mask bool) error {
	if len(payload) > Max {
		return fmt.Errorf("writing a frame: %d bytes are more than %d", len(payload), Max)
	}
	b := make([]byte, 0, len(payload)+14)
	b = append(b, final|op)
	var m byte
	if mask {
		m = masked
	}
	switch n := len(payload); {
	case n < len16:
		b = append(b, m|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, m|len16), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, m|len64), uint64(n))
	}
	if !mask {
		_, err := w.Write(append(b, payload...))
		return err
	}
	var key [4]byte
	if _, err := rand.Read(key[:]); err != nil {
		return fmt.Errorf("making a mask: %w", err)
	}
	b = append(b, key[:]...)
	start := len(b)
	b = append(b, payload...)
	xor(b[start:], key)
	_, err := w.Write(b)
	return err
}

// Read reads one frame and unmasks it. wasMasked tells a server whether the client kept to the rule.
func Read(r io.Reader) (op byte, payload []byte, wasMasked bool, err error) {
	var h [8]byte
	if _, err := io.ReadFull(r, h[:2]); err != nil {
		return 0, nil, false, err
	}
	if h[0]&final == 0 || h[0]&reserved != 0 || h[0]&0x0f == 0 {
		return 0, nil, false, ErrUnsupported
	}
	op, wasMasked = h[0]&0x0f, h[1]&masked != 0
	n := uint64(h[1] &^ masked)
	switch n {
	case len16:
		if _, err := io.ReadFull(r, h[:2]); err != nil {
			return 0, nil, false, whole(err)
		}
		n = uint64(binary.BigEndian.Uint16(h[:2]))
	case len64:
		if _, err := io.ReadFull(r, h[:8]); err != nil {
			return 0, nil, false, whole(err)
		}
		n = binary.BigEndian.Uint64(h[:8])
	}
	if n > Max {
		return 0, nil, false, fmt.Errorf("reading a frame: %d bytes are more than %d", n, Max)
	}
	var key [4]byte
	if wasMasked {
		if _, err := io.ReadFull(r, key[:]); err != nil {
			return 0, nil, false, whole(err)
		}
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, false, whole(err)
	}
	if wasMasked {
		xor(payload, key)
	}
	return op, payload, wasMasked, nil
}

// Accept answers a Sec-WebSocket-Key (RFC 6455, section 4.2.2).
func Accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // see the import
	return base64.StdEncoding.EncodeToString(sum[:])
}

// NewKey makes a Sec-WebSocket-Key.
func NewKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails since Go 1.24
	return base64.StdEncoding.EncodeToString(b[:])
}

func xor(b []byte, key [4]byte) {
	for i := range b {
		b[i] ^= key[i&3]
	}
}

// whole turns the end of the stream inside a frame into what it is: a truncated frame, not a clean end.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
