package wire

import (
	"encoding/binary"
	"errors"
)

// A message is encoded as its fields one after the other: numbers as eight bytes, strings
// as a length of four bytes and their bytes, lists as their number and their elements.
// There is one encoding of each message, and no way to leave a field out.

type encoder struct{ b []byte }

func (e *encoder) number(v uint64) { e.b = binary.BigEndian.AppendUint64(e.b, v) }
func (e *encoder) bytes(v []byte) {
	e.b = binary.BigEndian.AppendUint32(e.b, uint32(len(v)))
	e.b = append(e.b, v...)
}
func (e *encoder) text(v string) { e.bytes([]byte(v)) }
func (e *encoder) flag(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}
func (e *encoder) count(n int) { e.b = binary.BigEndian.AppendUint32(e.b, uint32(n)) }

var errMalformed = errors.New("malformed message")

// decoder reads what encoder wrote. After the first error it returns zeros.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n > len(d.b) {
		d.err = errMalformed
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) number() uint64 {
	if v := d.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (d *decoder) count() int {
	v := d.take(4)
	if v == nil {
		return 0
	}
	// An element takes a byte at least, so a list never asks for more memory than the
	// frame it came in.
	if n := binary.BigEndian.Uint32(v); int64(n) <= int64(len(d.b)) {
		return int(n)
	}
	d.err = errMalformed
	return 0
}

func (d *decoder) bytes() []byte {
	n := d.count()
	if n == 0 {
		return nil
	}
	return d.take(n)
}

func (d *decoder) text() string { return string(d.bytes()) }

func (d *decoder) flag() bool {
	v := d.take(1)
	if v == nil {
		return false
	}
	if v[0] > 1 {
		d.err = errMalformed
	}
	return v[0] == 1
}

func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.err = errMalformed
	}
	return d.err
}
