package h2

import (
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

// block is a header block that is being read (RFC 9113 section 4.3).
type block struct {
	open   bool // CONTINUATION is to come
	id     uint32
	end    bool // of the stream
	self   bool // it depends on itself
	frames int
	bytes  int
	size   uint32 // as SETTINGS_MAX_HEADER_LIST_SIZE counts
	limit  uint32
	over   bool // of the limit: the rest is decoded, and not kept
	fields []Field
}

func (k *block) begin(id uint32, end bool) {
	*k = block{open: true, id: id, end: end, limit: k.limit, fields: k.fields[:0]}
}

func (k *block) emit(f Field) {
	if k.size += f.Size(); k.size > k.limit {
		k.over = true
		return
	}
	k.fields = append(k.fields, f)
}

// rest lets go of the strings.
func (k *block) rest() {
	if !k.open && k.fields != nil {
		k.fields = nil
	}
}

// smallParts is how many frames a block may come in that hold next to nothing: a client may
// have its reasons to send it byte by byte, as long as it comes to an end.
const smallParts = 1000

// feed decodes a part of a block. Its errors are the connection's: the table is
// shared by all of its streams.
func (c *Conn) feed(p []byte, last bool) error {
	k := &c.block
	k.frames++
	k.bytes += len(p)
	if k.frames > smallParts+k.bytes/256 {
		return c.flood("continuation")
	}
	if k.bytes > 2*int(k.limit) {
		if k.frames > 2 {
			return c.flood("continuation")
		}
		return c.flood("header")
	}
	if _, err := c.dec.Write(p); err != nil {
		return &ConnError{Code: http2.ErrCodeCompression, Reason: err.Error()}
	}
	if uint64(k.size) > 16*uint64(k.limit) {
		return c.flood("header") // a few bytes that stand for very many
	}
	if !last {
		return nil
	}
	k.open = false
	if err := c.dec.Close(); err != nil {
		return &ConnError{Code: http2.ErrCodeCompression, Reason: err.Error()}
	}
	return nil
}

// What a header block is for.
type kind uint8

const (
	request kind = iota
	trailer
	response
	responseTrailer
)

// check says what makes a header malformed (RFC 9113 section 8.1.1), or "".
func check(fields []Field, what kind) string {
	var seen struct{ method, scheme, path, authority, status, te bool }
	var connect, regular bool
	var authority string
	once := func(b *bool) bool { was := *b; *b = true; return !was }
	for i := range fields {
		f := &fields[i]
		if strings.HasPrefix(f.Name, ":") {
			if regular {
				return "a pseudo field comes after a field"
			}
			ok := false
			switch f.Name {
			case ":method":
				ok = what == request && once(&seen.method) && httpguts.ValidHeaderFieldName(f.Value)
				connect = f.Value == "CONNECT"
			case ":scheme":
				ok = what == request && once(&seen.scheme) && (f.Value == "https" || f.Value == "http")
			case ":path":
				ok = what == request && once(&seen.path) && f.Value != ""
			case ":authority":
				ok = what == request && once(&seen.authority)
				authority = f.Value
			case ":status":
				ok = what == response && once(&seen.status) && len(f.Value) == 3
			}
			if !ok || !httpguts.ValidHeaderFieldValue(f.Value) {
				return "a pseudo field is unknown, there twice, empty, or not valid"
			}
			continue
		}
		regular = true
		if !validName(f.Name) {
			return "a field name is not valid"
		}
		if !httpguts.ValidHeaderFieldValue(f.Value) {
			return "a field value is not valid"
		}
		if what >= response {
			continue // servers that put "connection" here are too many to break with, and a proxy drops it
		}
		switch f.Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return "a field is for connections of HTTP/1.1"
		case "te":
			if f.Value != "trailers" && f.Value != "" || !once(&seen.te) {
				return "te has something else than trailers"
			}
		}
	}
	switch {
	case what == request && (!seen.method || connect == seen.scheme || connect == seen.path):
		return "a pseudo field is missing"
	case what == response && !seen.status:
		return "there is no status"
	case what != request:
	case connect:
		if authority == "" {
			return "nothing is named to connect to"
		}
	default:
		if authority == "" {
			authority = get(fields, "host")
		}
		if strings.Contains(authority, "@") { // section 8.3.1
			return "the authority has user information"
		}
	}
	return ""
}

// validName: a token without upper case (RFC 9113 section 8.2.1).
func validName(name string) bool {
	for i := 0; i < len(name); i++ {
		if c := name[i]; 'a' <= c && c <= 'z' || c == '-' {
			continue
		} else if 'A' <= c && c <= 'Z' || !httpguts.IsTokenRune(rune(c)) {
			return false
		}
	}
	return name != ""
}

// contentLength is the length that fields announce: -1 for none, or none that is
// one number.
func contentLength(fields []Field) int64 {
	length := int64(-1)
	for i := range fields {
		if fields[i].Name != "content-length" {
			continue
		}
		n, err := strconv.ParseUint(fields[i].Value, 10, 63)
		if err != nil || length >= 0 && length != int64(n) {
			return -1
		}
		length = int64(n)
	}
	return length
}

func get(fields []Field, name string) string {
	for i := range fields {
		if fields[i].Name == name {
			return fields[i].Value
		}
	}
	return ""
}

func isDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
