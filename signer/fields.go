package signer

import (
	"fmt"
	"io"
	"strings"
	"unsafe"
)

// A Field is one header field of a request that is about to be sent. Name is in lower case,
// as HTTP/2 sends it (RFC 9113, section 8.2).
type Field struct{ Name, Value string }

// A FieldSigner is a RequestSigner that can also sign without waiting, and without making
// garbage: for those who sign many requests on few goroutines.
type FieldSigner interface {
	RequestSigner

	// SignFields is SignRequest for a request whose header is sent, in order and without
	// pseudo-fields, and not r.Header, at which it does not look. It adds the fields to set
	// to out; each name replaces all that sent has under it. It keeps nothing of r and sent.
	//
	// ok is false, and nothing was done, where it would have to wait or cannot tell:
	// credentials have to be fetched, or a file looked at. Call SignRequest then. Where ok is
	// true, err is what SignRequest would return, and out is as it was if there is one. It is
	// safe for concurrent use, with an out for each call.
	SignFields(r *Request, sent []Field, out *Fields) (ok bool, err error)
}

// What Reset keeps for the next request, so that one odd request does not cost memory for
// ever: bytes, and fields.
const (
	keptBytes  = 16 << 10
	keptFields = 64
)

// Fields collects the fields that a signer makes, in memory that is used again. The zero
// value is ready. It is for one goroutine, and must not be copied once something is in it.
//
// It shows no value when it is printed: tokens and signatures are among them.
type Fields struct {
	list      []Field
	transient []bool // of each in list
	buf       []byte // holds the transient values
}

// Reset empties f. Transient values are overwritten by those that are added next.
func (f *Fields) Reset() {
	clear(f.list) // what it points to may be a secret that rotates
	if cap(f.list) > keptFields {
		f.list, f.transient = nil, nil
	}
	if cap(f.buf) > keptBytes {
		f.buf = nil
	}
	f.list, f.transient, f.buf = f.list[:0], f.transient[:0], f.buf[:0]
}

// Add adds a field. Name is in lower case; value is kept as it is, and neither is ever
// overwritten: give it what lasts from request to request.
func (f *Fields) Add(name, value string) {
	f.list = append(f.list, Field{name, value})
	f.transient = append(f.transient, false)
}

// AddBytes adds a field whose value is of this request alone. It copies value.
func (f *Fields) AddBytes(name string, value []byte) {
	// Should buf have to grow, the values before stay in the array before, which nobody
	// writes to again.
	start := len(f.buf)
	f.buf = append(f.buf, value...)
	f.list = append(f.list, Field{name, unsafe.String(unsafe.SliceData(f.buf[start:]), len(value))})
	f.transient = append(f.transient, true)
}

// List returns the fields. The slice, and the transient values in it, are valid until Reset.
func (f *Fields) List() []Field { return f.list }

// Transient tells whether the value of the i-th field of List was made by AddBytes. Such a
// value is of this request alone, and its memory is overwritten after Reset: whoever keeps it
// longer, as an HPACK table does with what it indexes, would send another request's.
func (f *Fields) Transient(i int) bool { return f.transient[i] }

// Format writes the names.
func (f Fields) Format(s fmt.State, _ rune) {
	names := make([]string, 0, len(f.list))
	for _, field := range f.list {
		names = append(names, field.Name)
	}
	_, _ = io.WriteString(s, "fields ["+strings.Join(names, " ")+"]")
}
