package sigv4

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/execproxy/execproxy/signer"
)

// form is a request on its way to a signature: the memory for it, which is used again.
type form struct {
	fields []signer.Field // to be signed, sorted by name
	simple bool           // the path is signed as it is
	pairs  []pair         // of the query
	mem    []byte         // what fields and pairs had to write anew
	text   []byte         // the canonical request
	line   []byte         // the string to sign, then Authorization
	target [2 * sha256.Size]byte
	sum    [sha256.Size]byte

	key *dayKey
	mac hash.Hash // of key

	given []signer.Field // SignRequest's header
}

// keptForm is how many bytes a form may keep for the next request, in one of its buffers.
const keptForm = 64 << 10

// release gives a form back, without what belongs to the request.
func (s *Signer) release(f *form) {
	clear(f.fields)
	clear(f.pairs)
	clear(f.given)
	f.fields, f.pairs, f.given = f.fields[:0], f.pairs[:0], f.given[:0]
	if cap(f.text) > keptForm || cap(f.mem) > keptForm || cap(f.line) > keptForm ||
		cap(f.fields) > keptForm/32 || cap(f.pairs) > keptForm/32 || cap(f.given) > keptForm/32 {
		*f = form{key: f.key, mac: f.mac}
	}
	s.forms.Put(f)
}

// Format hides everything.
func (f *form) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "sigv4 form") }

// prepare checks a request and takes from it what will be signed. sent are its fields.
func (f *form) prepare(s *Signer, r *signer.Request, sent []signer.Field) error {
	if !validName(r.Method) {
		return &signer.RequestError{Field: "method", Problem: "is not a token"}
	}
	if !validAuthority(r.Authority) {
		return &signer.RequestError{Field: "authority", Problem: "want a host, with a port if it is sent with one"}
	}
	if f.simple = simplePath(r.Path); !f.simple {
		if err := requirePath(r.Path, s.o.Path); err != nil {
			return err
		}
	}
	if err := requireQuery(r.RawQuery); err != nil {
		return err
	}
	if r.ContentSHA256 != signer.UnsignedPayload && !isHash(r.ContentSHA256) {
		return &signer.RequestError{Field: "body", Problem: "has no SHA-256 in lower-case hex to sign"}
	}
	f.fields, f.mem = f.fields[:0], f.mem[:0]
	length := false // there is a Content-Length
	for i := range sent {
		name, value := sent[i].Name, sent[i].Value
		if replaced(name) || neverSigned(name) {
			continue
		}
		if !lowerToken(name) {
			return &signer.RequestError{Field: fieldName(name), Problem: badName}
		}
		asIs := asItIs(value)
		if problem := checkValue(name, value, asIs); problem != "" {
			return &signer.RequestError{Field: fieldName(name), Problem: problem}
		}
		if name == "content-length" {
			if length {
				return &signer.RequestError{Field: fieldName(name), Problem: tooMany}
			}
			length = true
			n, err := strconv.ParseUint(value, 10, 63)
			if err != nil {
				return &signer.RequestError{Field: fieldName(name), Problem: "is not a number"}
			}
			if n == 0 { // as the SDK has it
				continue
			}
			value = strings.TrimLeft(value, "0")
		}
		if !asIs {
			value, f.mem = trimValue(f.mem, value)
		}
		f.fields = append(f.fields, signer.Field{Name: name, Value: value})
	}
	return nil
}

func validAuthority(host string) bool {
	for i := 0; i < len(host); i++ {
		if kinds[host[i]]&notInHost != 0 {
			return false
		}
	}
	return host != ""
}

// lowerToken tells whether a field name is a token in lower case.
func lowerToken(name string) bool {
	for i := 0; i < len(name); i++ {
		if kinds[name[i]]&(inToken|upperCase) != inToken {
			return false
		}
	}
	return name != ""
}

// finish signs what prepare took, and adds the fields to out.
func (f *form) finish(s *Signer, r *signer.Request, sent []signer.Field, k *dayKey, m *moment, out *signer.Fields) error {
	if k.token == "" {
		for i := range sent {
			if sent[i].Name == lowToken {
				return &signer.RequestError{Field: fieldToken,
					Problem: "is on the request, but these credentials have no session token: remove it"}
			}
		}
	}
	sendHash := !s.o.OmitContentSHA256 || r.ContentSHA256 == signer.UnsignedPayload
	f.fields = append(f.fields, signer.Field{Name: "host", Value: r.Authority})
	if sendHash {
		f.fields = append(f.fields, signer.Field{Name: lowSHA256, Value: r.ContentSHA256})
	}
	f.fields = append(f.fields, signer.Field{Name: lowDate, Value: m.date})
	if k.token != "" && !s.o.UnsignedSessionToken {
		f.fields = append(f.fields, signer.Field{Name: lowToken, Value: k.trimmed})
	}
	if s.o.BindTarget {
		f.hashTarget(r)
		f.fields = append(f.fields, signer.Field{Name: lowTarget, Value: text(f.target[:])})
	}
	f.sort()
	for i := 1; i < len(f.fields); i++ {
		if name := f.fields[i].Name; name == f.fields[i-1].Name && single(name) {
			return &signer.RequestError{Field: fieldName(name), Problem: tooMany}
		}
	}

	b := append(append(f.text[:0], r.Method...), '\n')
	if f.simple {
		b = append(b, r.Path...)
	} else {
		b = appendPath(b, r.Path, s.o.Path, s.o.SingleEncode)
	}
	b = append(b, '\n')
	f.pairs, f.mem = splitQuery(f.pairs[:0], f.mem, r.RawQuery)
	b = append(appendQuery(b, f.pairs), '\n')
	b = append(appendHeader(b, f.fields), '\n')
	names := len(b)
	b = appendNames(b, f.fields)
	signed := b[names:]
	b = append(b, '\n')
	b = append(b, r.ContentSHA256...)
	f.text, f.sum = b, sha256.Sum256(b)

	line := append(f.line[:0], m.head...)
	line = hex.AppendEncode(line, f.sum[:])
	if f.key != k {
		f.key, f.mac = k, k.hmac()
	}
	f.mac.Reset()
	f.mac.Write(line)
	signature := f.mac.Sum(f.sum[:0])

	line = append(append(line[:0], k.head...), signed...)
	line = append(line, ", Signature="...)
	line = hex.AppendEncode(line, signature)
	f.line = line

	out.AddBytes(lowAuthorization, line)
	out.AddBytes(lowDate, append(f.text[:0], m.date...)) // it changes every second: not for a table
	if k.token != "" {
		out.Add(lowToken, k.token)
	}
	if sendHash {
		addHash(out, r.ContentSHA256)
	}
	if s.o.BindTarget {
		out.AddBytes(lowTarget, f.target[:])
	}
	return nil
}

// addHash adds the body's hash: as what it always is, or as what it is this time.
func addHash(out *signer.Fields, sum string) {
	switch sum {
	case signer.EmptySHA256:
		out.Add(lowSHA256, signer.EmptySHA256)
	case signer.UnsignedPayload:
		out.Add(lowSHA256, signer.UnsignedPayload)
	default:
		var b [2 * sha256.Size]byte
		out.AddBytes(lowSHA256, append(b[:0], sum...))
	}
}

// hashTarget writes the value of TargetHeader.
func (f *form) hashTarget(r *signer.Request) {
	b := append(f.line[:0], r.Path...)
	if r.RawQuery != "" {
		b = append(append(b, '?'), r.RawQuery...)
	}
	f.line = b
	sum := sha256.Sum256(b)
	hex.Encode(f.target[:], sum[:])
}

// sort sorts the fields by name; those of one name stay in order. A header is short and
// mostly sorted, which is what inserting is good at.
func (f *form) sort() {
	list := f.fields
	if len(list) > 32 {
		slices.SortStableFunc(list, func(a, b signer.Field) int { return strings.Compare(a.Name, b.Name) })
		return
	}
	for i := 1; i < len(list); i++ {
		field, j := list[i], i
		for ; j > 0 && before(field.Name, list[j-1].Name); j-- {
			list[j] = list[j-1]
		}
		list[j] = field
	}
}

// before is a < b, of names, which mostly differ in the first letter.
func before(a, b string) bool {
	if a[0] != b[0] {
		return a[0] < b[0]
	}
	return a < b
}
