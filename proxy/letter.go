package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/transport/h2"
)

// A letter is what is needed to send a request, and to send it again.
type letter struct {
	in     []h2.Field // as it came
	target target
	method string
	length int64 // of the body; -1: not said
	hashed bool
	whole  bool   // the body is sent once it is there and hashed, not as it comes
	kept   bool   // all that came of it is in body
	body   []byte // at most chunkSize bytes
	space  *held  // which they take
}

// scratch is what making the fields of a request needs.
type scratch struct {
	view   signer.Request
	out    []h2.Field
	sent   []signer.Field
	signed signer.Fields
}

var (
	letters   = sync.Pool{New: func() any { return new(letter) }}
	scratches = sync.Pool{New: func() any { return new(scratch) }}
)

func (l *letter) free() {
	if l.space != nil {
		l.space.release()
	}
	clear(l.in)
	in := l.in[:0]
	if cap(in) > 64 {
		in = nil
	}
	*l = letter{in: in}
	letters.Put(l)
}

// read looks whether a request can be passed on without waiting, and how.
func (p *Proxy) read(l *letter, s *h2.Stream, loopback, end bool) bool {
	v := caller{Verified: p.verified(s.Conn().ConnectionState())}
	var path string
	var special http.Header
	lengths, hosts := 0, 0
	for i := range l.in {
		f := &l.in[i]
		switch f.Name {
		case ":method":
			l.method, v.Method = f.Value, f.Value
		case ":path":
			path = f.Value
		case ":authority":
			v.Host = f.Value
		case "host":
			if hosts++; hosts == 1 && v.Host == "" {
				v.Host = f.Value
			}
		case "content-length":
			lengths++
		case "trailer", "expect":
			return false
		case "authorization", "sec-websocket-protocol", "origin", "referer", "sec-fetch-site":
			if special == nil {
				special = make(http.Header, 1)
			}
			name := http.CanonicalHeaderKey(f.Name)
			special[name] = append(special[name], f.Value)
		}
	}
	v.Header = special
	if anonymous, no := p.admit(&v, loopback); no != nil || anonymous {
		return false
	}
	var err error
	if l.target, err = parseTarget(path, p.base, false); err != nil {
		return false
	}
	l.length = s.Length()
	if lengths > 1 || lengths == 1 && l.length < 0 {
		return false
	}
	signs := p.sign != nil
	l.hashed = signs && p.hash
	if end || l.length == 0 {
		return true
	}
	switch p.treat(l.length, signs) {
	case refuseBody:
		return false
	case holdBody:
		if l.length < 0 || l.length > chunkSize {
			return false
		}
		if l.space = p.memory.tryReserve(l.length); l.space == nil {
			return false
		}
		l.whole, l.kept = true, true
	case streamBody:
		l.kept = 0 < l.length && l.length <= replayLimit
	}
	if l.kept {
		l.body = make([]byte, 0, l.length)
	}
	return true
}

func (k *scratch) rest() {
	clear(k.out)
	clear(k.sent)
	k.out, k.sent = k.out[:0], k.sent[:0]
	k.signed.Reset()
	k.view = signer.Request{}
	scratches.Put(k)
}

// compose makes the fields that are sent, in k.out. False: they cannot be made now.
func (p *Proxy) compose(k *scratch, l *letter, end bool) bool {
	path := l.target.path
	if l.target.mark {
		path += "?" + l.target.query
	}
	k.out = append(k.out,
		h2.Field{Name: ":method", Value: l.method}, h2.Field{Name: ":scheme", Value: "https"},
		h2.Field{Name: ":authority", Value: p.authority},
		// A query may hold what nobody should guess.
		h2.Field{Name: ":path", Value: path, Sensitive: l.target.mark})
	head := len(k.out)
	trailers, agent, length := false, false, false
	for _, f := range l.in {
		if f.Name[0] == ':' {
			continue
		}
		switch f.Name {
		case "te":
			trailers = trailers || f.Value != "" // nothing else is valid
			continue
		case "content-length":
			length = length || l.length >= 0
			continue
		case "user-agent":
			if agent || f.Value == "" {
				continue
			}
			agent = true
		}
		if p.rules.ofLower(f.Name) == drop {
			continue
		}
		k.out = append(k.out, f)
	}
	if trailers {
		k.out = append(k.out, h2.Field{Name: "te", Value: "trailers"})
	}
	if p.sign != nil && !p.signInto(k, l, head) {
		return false
	}
	switch {
	case length, l.whole:
		k.out = append(k.out, h2.Field{Name: "content-length", Value: strconv.FormatInt(l.length, 10)})
	case end && (l.method == http.MethodPost || l.method == http.MethodPut || l.method == http.MethodPatch):
		k.out = append(k.out, h2.Field{Name: "content-length", Value: "0"})
	}
	return true
}

func (p *Proxy) signInto(k *scratch, l *letter, head int) bool {
	for _, f := range k.out[head:] {
		k.sent = append(k.sent, signer.Field{Name: f.Name, Value: f.Value})
	}
	k.view = signer.Request{Method: l.method, Scheme: "https", Authority: p.authority, Path: l.target.path, RawQuery: l.target.query}
	switch {
	case !l.hashed:
	case len(l.body) > 0:
		sum := sha256.Sum256(l.body)
		k.view.ContentSHA256 = hex.EncodeToString(sum[:])
	case l.length > p.maxHashed:
		k.view.ContentSHA256 = unsignedPayload
	default:
		k.view.ContentSHA256 = emptySHA256
	}
	ok, err := p.signFields(&k.view, k.sent, &k.signed)
	if !ok || err != nil {
		return false // the handler finds out the same, and tells
	}
	signed := k.signed.List()
	kept := k.out[:head]
	for _, o := range k.out[head:] {
		if !slices.ContainsFunc(signed, func(f signer.Field) bool { return f.Name == o.Name }) {
			kept = append(kept, o)
		}
	}
	k.out = kept
	for i, f := range signed {
		if f.Name == "" || f.Name[0] == ':' || notASigners(f.Name) {
			return false
		}
		// What is of this request alone, and what authenticates, stays out of HPACK's tables.
		// A session token is neither: it is long, and nobody guesses it as a whole.
		k.out = append(k.out, h2.Field{Name: f.Name, Value: f.Value, Sensitive: k.signed.Transient(i) || f.Name != "x-amz-security-token"})
	}
	return true
}
