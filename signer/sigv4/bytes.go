package sigv4

import (
	"encoding/binary"
	"unsafe"
)

// kinds tells what a byte is, for loops that look at every one of a request.
var kinds = makeKinds()

const (
	inToken    = 1 << iota // of RFC 9110, section 5.6.2
	upperCase              // A to Z
	unreserved             // of RFC 3986, section 2.3: SigV4 never encodes it
	notInHost              // what an authority must not have
	inPath                 // unreserved, or a slash
	slash
	slashOrDot // next to slash: simplePath shifts one onto the other
)

func makeKinds() (k [256]byte) {
	set := func(what byte, chars string) {
		for i := range len(chars) {
			k[chars[i]] |= what
		}
	}
	const upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	const plain = "abcdefghijklmnopqrstuvwxyz" + upper + "0123456789-_~"
	set(inToken, plain+".!#$%&'*+^`|")
	set(upperCase, upper)
	set(unreserved, plain+".")
	set(notInHost, " \t\r\n/,@")
	set(inPath, plain+"./")
	set(slash, "/")
	set(slashOrDot, "/.")
	return k
}

const upperHex = "0123456789ABCDEF"

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// appendEncoded appends a byte as SigV4 writes it.
func appendEncoded(b []byte, c byte) []byte {
	if kinds[c]&unreserved != 0 {
		return append(b, c)
	}
	return append(b, '%', upperHex[c>>4], upperHex[c&15])
}

// text is b as a string, without a copy. Nobody may write to b while it is in use; appending
// to b does not.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// plain tells whether s is free of bytes below the space, of DEL, and of two spaces in a row.
// It looks at eight bytes at a time, as every value of every request comes by here; where it
// says false, look again.
func plain(s string) bool {
	const (
		low  = 0x0101010101010101
		high = 0x80 * low
	)
	b := unsafe.Slice(unsafe.StringData(s), len(s))
	for ; len(b) > 8; b = b[8:] {
		x, next := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[1:])
		del, space, spaceNext := x^0x7f*low, x^' '*low, next^' '*low
		// The first high bit that is set is right, those above it may not be.
		found := (x-' '*low)&^x | (del-low)&^del | (space-low)&^space&(spaceNext-low)&^spaceNext
		if found&high != 0 {
			return false
		}
	}
	for i, c := range b {
		if c < ' ' || c == 0x7f || c == ' ' && i+1 < len(b) && b[i+1] == ' ' {
			return false
		}
	}
	return true
}
