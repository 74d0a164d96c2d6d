package proxy

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Names as HTTP/2 has them: the heads here are not canonical.
var lengthField, trailerField = "content-length", "trailer"

// view is one exchange of one twin, in the form that is compared: the order of
// names does not matter, that of values does (RFC 9110 section 5.3).
type view struct {
	verdict string // in place of all the rest
	got     gotView
	seen    []seenView
	conn    string
}

type gotView struct {
	info          []string
	status, end   string
	head, trailer http.Header
	body          []byte
}

type seenView struct {
	method, target, host string
	header, trailer      http.Header
	length               int64
	body                 []byte
	whole                bool
}

func newView(r *result, i int) *view {
	g := r.got[i]
	v := &view{conn: r.conn, got: gotView{info: g.info, status: g.status, end: g.end, head: fieldMap(g.head), trailer: fieldMap(g.trailer), body: g.body}}
	for _, s := range r.seen[i] {
		v.seen = append(v.seen, seenView{method: s.method, target: s.target, host: s.host, header: maps.Clone(s.header), trailer: maps.Clone(s.trailer),
			length: s.length, body: s.body, whole: s.whole})
	}
	return v
}

func fieldMap(fields []hpack.HeaderField) http.Header {
	h := make(http.Header)
	for _, f := range fields {
		h[f.Name] = append(h[f.Name], f.Value)
	}
	return h
}

func (v *view) String() string {
	if v.verdict != "" {
		return "  " + v.verdict + "\n"
	}
	var b strings.Builder
	g := &v.got
	fmt.Fprintf(&b, "  got  %q %s head %s body %s trailer %s %s\n", g.info, g.status, fields(g.head), digest(g.body), fields(g.trailer), g.end)
	for _, s := range v.seen {
		fmt.Fprintf(&b, "  seen %q %q host %q head %s length %d body %s whole %v trailer %s\n",
			s.method, s.target, s.host, fields(s.header), s.length, digest(s.body), s.whole, fields(s.trailer))
	}
	if v.conn != "" {
		fmt.Fprintf(&b, "  connection: %s\n", v.conn)
	}
	return b.String()
}

func fields(h http.Header) string {
	var b strings.Builder
	b.WriteByte('{')
	for _, name := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintf(&b, " %q:%q", name, h[name])
	}
	return b.String() + " }"
}

func digest(b []byte) string {
	if len(b) < 300 && !bytes.ContainsFunc(b, func(r rune) bool { return r > 0x7e || r < ' ' && r != '\n' }) {
		return fmt.Sprintf("%q", b)
	}
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%d bytes %x", len(b), sum[:6])
}

func (g *gotView) field(name string) string {
	return strings.Join(g.head[strings.ToLower(name)], ", ")
}

func (g *gotView) ours() bool { return g.field(ErrorHeader) != "" }

// cut: the answer did not end as one that is whole does.
func (g *gotView) cut() bool { return strings.HasPrefix(g.end, "RST ") || g.end == "LOST" }

// refused: the request was not for the upstream, or did not reach it whole.
func (v *view) refused() bool {
	for _, s := range v.seen {
		if s.whole {
			return false
		}
	}
	switch v.got.status {
	case "":
		return v.got.cut() && v.got.end != "RST REFUSED_STREAM"
	case "400", "431":
		return v.got.ours() || strings.HasPrefix(v.got.field("Content-Type"), "text/plain") || len(v.got.body) > 0 && v.got.body[0] == '<'
	case "502": // net/http cannot write it, a trailer's odd name for one
		return v.got.ours() && len(v.seen) == 0
	}
	return false
}

// tolerated are the differences that are none, and why. A rule edits both
// views, so that what it tolerates is the same in both, and nothing else is.
var tolerated = []struct {
	what, why string
	level     func(x *script, a, b *view)
}{
	{
		"how a malformed request is refused: RST_STREAM, GOAWAY, or 400 and 431, by the proxy or by net/http, a path with %zz among them",
		"RFC 9113 sections 5.4.2, 8.1.1: a stream error may be made a connection error, and a server may answer before it resets",
		func(x *script, a, b *view) {
			if a.refused() && b.refused() {
				a.verdict, b.verdict = "refused", "refused"
			}
		},
	},
	{
		"whether the upstream saw the beginning of a request that the client broke or took back",
		"RFC 9113 section 8.1.1, and 5.4.2: what was sent before the error may have been acted on",
		func(x *script, a, b *view) {
			if a.got.end == "END" || b.got.end == "END" {
				return
			}
			for _, v := range []*view{a, b} {
				v.seen = slices.DeleteFunc(v.seen, func(s seenView) bool { return !s.whole })
			}
		},
	},
	{
		"whether a request got through that the client took back, or lost by what it did to the stream or the connection",
		"RFC 9113 sections 5.1, 5.4: what ends a stream may overtake what is still to be passed on",
		func(x *script, a, b *view) {
			if a.got.end == "LEFT" && b.got.end == "LEFT" || (x.wrong || x.short) && a.got.cut() && b.got.cut() {
				a.seen, b.seen = nil, nil
			}
		},
	},
	{
		"a request that is malformed and that net/http lets pass",
		"RFC 9113 sections 8.1.1, 8.2.1, 8.3.1: it must be refused",
		func(x *script, a, b *view) {
			if b.refused() && !a.refused() && x.lenient() {
				a.verdict, b.verdict = "refused", "refused"
			}
		},
	},
	{
		"what is told first of a request that is malformed and not admitted: net/http resets a path that it cannot parse",
		"RFC 9113 section 8.1.1: a server may answer before it resets",
		func(x *script, a, b *view) {
			if a.refused() && a.got.status == "" && b.got.ours() && len(b.seen) == 0 && slices.Contains([]string{"401", "403", "405"}, b.got.status) {
				a.verdict, b.verdict = "refused", "refused"
			}
		},
	},
	{
		"whether an answer comes in time before the client's own mistake",
		"RFC 9113 section 5.4: an error ends the stream or the connection when it is noticed",
		func(x *script, a, b *view) {
			if x.wrong && ((a.got.cut() || b.got.cut()) && a.got.end != b.got.end || a.refused() != b.refused()) {
				a.verdict, b.verdict = "lost", "lost"
			}
		},
	},
	{
		"how much of an answer that breaks off gets through, and with which code",
		"RFC 9113 sections 5.4.2, 7: codes are hints; REFUSED_STREAM and NO_ERROR are not, by sections 8.7 and 8.1",
		func(x *script, a, b *view) {
			left := a.got.end == "LEFT" && b.got.end == "LEFT"
			if !left && !(a.got.cut() && b.got.cut()) {
				return
			}
			for _, v := range []*view{a, b} {
				switch v.got.end {
				case "RST REFUSED_STREAM", "RST NO_ERROR", "LEFT":
				default:
					v.got.end = "CUT"
				}
				v.got.trailer = nil
			}
			if a.got.status == "" || b.got.status == "" {
				for _, v := range []*view{a, b} {
					v.got.status, v.got.head, v.got.body = "", nil, nil
				}
			}
			n := min(len(a.got.body), len(b.got.body))
			a.got.body, b.got.body = a.got.body[:n], b.got.body[:n]
		},
	},
	{
		"how often a server is asked that takes no request",
		"RFC 9113 section 8.7",
		func(x *script, a, b *view) {
			if x.again {
				a.seen, b.seen = a.seen[:min(1, len(a.seen))], b.seen[:min(1, len(b.seen))]
			}
		},
	},
	{
		"1xx",
		"RFC 9110 section 15.2: a client must be able to do without; net/http's transport keeps them to itself",
		func(x *script, a, b *view) { a.got.info, b.got.info = nil, nil },
	},
	{
		"the date of the proxy's own answers",
		"RFC 9110 section 6.6.1",
		func(x *script, a, b *view) {
			for _, v := range []*view{a, b} {
				if v.got.ours() {
					delete(v.got.head, "date")
				}
			}
		},
	},
	{
		"whether more on a stream that was refused ends the connection",
		"RFC 9113 section 5.1: to the one end the stream is closed, to the other it was never opened",
		func(x *script, a, b *view) {
			if a.got.status == "" && b.got.status == "" && len(a.seen) == 0 && len(b.seen) == 0 {
				a.conn, b.conn = "", ""
			}
		},
	},
	{
		"a content-length of 0 that net/http gives to an answer that ends with its head",
		"RFC 9110 section 8.6, RFC 9113 section 8.1: the end of the stream says as much",
		func(x *script, a, b *view) {
			if slices.Equal(a.got.head[lengthField], []string{"0"}) && b.got.head[lengthField] == nil && len(b.got.body) == 0 {
				delete(a.got.head, lengthField)
			}
		},
	},
	{
		"whether a body of nothing is announced by HEADERS that end or by DATA that does",
		"RFC 9113 section 8.1: they mean the same",
		func(x *script, a, b *view) {
			for _, v := range []*view{a, b} {
				for i := range v.seen {
					if s := &v.seen[i]; s.length == -1 && s.whole && len(s.body) == 0 {
						s.length = 0
					}
				}
			}
		},
	},
	{
		"a content-length of 0 that the client sent, and that net/http keeps to itself with most methods",
		"RFC 9110 section 8.6: it means the same",
		func(x *script, a, b *view) {
			for i := range min(len(a.seen), len(b.seen)) {
				for _, name := range []string{"Content-Length", "content-length"} {
					if slices.Equal(b.seen[i].header[name], []string{"0"}) && a.seen[i].header[name] == nil && a.seen[i].length == 0 {
						delete(b.seen[i].header, name)
					}
				}
			}
		},
	},
	{
		"a 304 or 204 with the length of what is not sent, which net/http's transport takes for a body that broke off",
		"RFC 9113 section 8.1.1, RFC 9110 section 15.4.5: it may have one; a 304's is that of the 200 for which it stands",
		func(x *script, a, b *view) {
			if (b.got.status == "304" || b.got.status == "204") && b.got.end == "END" && a.got.cut() && x.says("content-length", "") {
				a.got = b.got
			}
		},
	},
	{
		"how an answer is refused that ends with its head and has announced more",
		"RFC 9113 section 8.1.1: it is malformed; who has seen the end before the head is passed on can say so",
		func(x *script, a, b *view) {
			if a.got.cut() && b.got.status == "502" && b.got.ours() && x.says("content-length", "") {
				a.got = b.got
			}
		},
	},
	{
		"an answer that has not the length that it announces twice, which net/http takes for none",
		"RFC 9110 section 8.6: the same number twice is that number; RFC 9113 section 8.1.1: the answer is malformed",
		func(x *script, a, b *view) {
			lengths := 0
			for _, s := range x.server {
				if s.field.Name == "content-length" {
					lengths++
				}
			}
			if lengths > 1 && a.got.end == "END" && (b.got.cut() || b.got.status == "502" && b.got.ours()) {
				a.got = b.got
			}
		},
	},
	{
		"the trailer of an answer to HEAD, which net/http leaves out",
		"RFC 9110 sections 6.5, 9.3.2: it may be there",
		func(x *script, a, b *view) {
			if x.asks("HEAD") {
				a.got.trailer, b.got.trailer = nil, nil
			}
		},
	},
	{
		"a body behind HEAD, which net/http throws away",
		"RFC 9113 section 8.1.1: it is malformed, and is not to be passed on",
		func(x *script, a, b *view) {
			if x.asks("HEAD") && has(x.server, "DATA") && a.got.end == "END" && b.got.cut() && a.got.status == b.got.status {
				a.got.end = b.got.end
			}
		},
	},
	{
		"how Trailer is spelled, and that net/http sends what is announced there and came in the head once more",
		"RFC 9110 sections 5.6.1, 6.6.2: it lists names, whose order and case mean nothing",
		func(x *script, a, b *view) {
			for _, v := range []*view{a, b} {
				if lists := v.got.head[trailerField]; lists != nil {
					names := strings.FieldsFunc(strings.ToLower(strings.Join(lists, ",")), func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
					slices.Sort(names)
					v.got.head[trailerField] = slices.Compact(names)
					if len(names) == 0 {
						delete(v.got.head, "trailer")
					}
				}
			}
			for name, values := range a.got.trailer {
				if b.got.trailer[name] == nil && slices.Equal(values, a.got.head[name]) {
					delete(a.got.trailer, name)
				}
			}
		},
	},
	{
		"a 101, which net/http's transport does not notice",
		"RFC 9113 section 8.6: there is none in HTTP/2, and what is malformed is an error of the stream",
		func(x *script, a, b *view) {
			if x.says(":status", "101") && b.got.status == "502" && b.got.ours() {
				a.verdict, b.verdict = "101", "101"
			}
		},
	},
	{
		"that net/http sends again what was reset with PROTOCOL_ERROR",
		"RFC 9113 section 8.7: REFUSED_STREAM alone, and GOAWAY, tell that nothing was done",
		func(x *script, a, b *view) {
			if x.again && a.got.status == "503" && a.got.ours() && b.got.status == "502" && b.got.ours() &&
				slices.ContainsFunc(x.server, func(s step) bool { return s.do == "RST" && http2.ErrCode(s.n) == http2.ErrCodeProtocol }) {
				a.got = b.got
			}
		},
	},
	{
		"one setting twice in a frame, which net/http takes for an error of the connection",
		"RFC 9113 section 6.5.3: settings are processed in the order in which they stand, and the last value counts",
		func(x *script, a, b *view) {
			if strings.HasPrefix(a.conn, "GOAWAY") && x.setsTwice() {
				a.verdict, b.verdict = "set twice", "set twice"
			}
		},
	},
	{
		"whether more on a stream behind its end is the stream's error, the connection's, or nobody's who has forgotten the stream",
		"RFC 9113 section 5.1: it depends on whether the answer has ended, too",
		func(x *script, a, b *view) {
			if x.behind() {
				a.conn, b.conn = "", ""
			}
		},
	},
	{
		"which error ends a connection",
		"RFC 9113 section 7: codes are hints; that it ends is none",
		func(x *script, a, b *view) {
			for _, v := range []*view{a, b} {
				if strings.HasPrefix(v.conn, "GOAWAY ") && v.conn != "GOAWAY NO_ERROR" || strings.HasPrefix(v.conn, "closed") {
					v.conn = "error"
				}
			}
		},
	},
}

// asks reports whether the client's request has a method.
func (x *script) asks(method string) bool {
	return slices.ContainsFunc(x.client, func(s step) bool { return s.field.Name == ":method" && s.field.Value == method })
}

// says reports whether a field is in what the server says; value "": with any.
func (x *script) says(name, value string) bool {
	return slices.ContainsFunc(x.server, func(s step) bool {
		return s.do == "field" && s.field.Name == name && (value == "" || s.field.Value == value)
	})
}

// setsTwice reports whether the client has a setting twice in one frame.
func (x *script) setsTwice() bool {
	for _, s := range x.client {
		for i, set := range s.set {
			if slices.ContainsFunc(s.set[:i], func(o http2.Setting) bool { return o.ID == set.ID }) {
				return true
			}
		}
	}
	return false
}

// behind reports whether the client says more on its stream when it has ended it.
func (x *script) behind() bool {
	ended := false
	for _, s := range x.client {
		if ended && (s.do == "HEADERS" || s.do == "DATA" || s.do == "RST" || s.do == "WINDOW") {
			return true
		}
		ended = ended || s.end && (s.do == "HEADERS" || s.do == "DATA") || s.do == "RST"
	}
	return false
}

// lenient reports whether net/http lets a request pass that RFC 9113 calls
// malformed: white space around a value, a method that is no token, an authority
// that is none or that is not the Host, a length of a body that does not come, a
// path with bytes that no path has.
func (x *script) lenient() bool {
	block, authority, host, end := 0, "", "", false
	odd := false
	for _, s := range x.client {
		switch f := s.field; {
		case s.do == "HEADERS":
			block++
			end = end || block == 1 && s.end
		case s.do != "field":
		case strings.Trim(f.Value, " \t") != f.Value:
			odd = true
		case f.Name == ":method":
			odd = odd || !httpguts.ValidHeaderFieldName(f.Value)
		case f.Name == ":authority":
			authority = f.Value
			odd = odd || !httpguts.ValidHostHeader(f.Value) || strings.ContainsAny(f.Value, "@/ ")
		case f.Name == "host":
			odd = odd || host != "" && host != f.Value
			host = f.Value
		case f.Name == ":path":
			odd = odd || strings.ContainsFunc(f.Value, func(r rune) bool { return r <= ' ' || r >= 0x7f })
		}
	}
	end = end || block == 0
	return odd || host != "" && authority != "" && host != authority || end && announced(x.client) > 0
}

// compare tells what is different between two twins, or wrong with one of them.
func compare(x *script, names [2]string, results [2]*result) string {
	var b strings.Builder
	for i, r := range results {
		r.wrongs(x, func(i2 int, what string) {
			fmt.Fprintf(&b, "%s, stream %d: %s\n%s", names[i], i2, what, newView(r, i2))
		})
	}
	for i := range x.copies {
		one, two := newView(results[0], i), newView(results[1], i)
		raw := [2]string{one.String(), two.String()}
		for _, rule := range tolerated {
			rule.level(x, one, two)
		}
		if s, t := one.String(), two.String(); s != t {
			fmt.Fprintf(&b, "different on stream %d:\n%s:\n%s%s:\n%s", i, names[0], raw[0], names[1], raw[1])
			if s != raw[0] || t != raw[1] {
				fmt.Fprintf(&b, "less what is tolerated:\n%s%s", s, t)
			}
		}
	}
	return b.String()
}

// rawData reports whether there is DATA of any content.
func rawData(steps []step) bool {
	return slices.ContainsFunc(steps, func(s step) bool { return s.do == "FRAME" && s.kind == http2.FrameData })
}

// wrongs reports what no proxy may do.
func (r *result) wrongs(x *script, report func(int, string)) {
	for i, g := range r.got {
		v := newView(r, i)
		if g.invalid != "" {
			report(i, "the answer is malformed: "+g.invalid)
		}
		for _, s := range r.seen[i] {
			if s.broken != "" {
				report(i, "the upstream's request is malformed: "+s.broken)
			}
			if want := content(0, len(s.body), 'c'); !bytes.Equal(s.body, want) && !rawData(x.client) {
				report(i, "the upstream's body is not what was sent")
			}
		}
		if len(r.seen[i]) > 1 && !x.again {
			report(i, "the upstream saw the request more than once")
		}
		if len(r.seen[i]) > 0 && g.status != "" && !v.got.ours() && !bytes.Equal(g.body, content(0, len(g.body), 's')) && !rawData(x.server) {
			report(i, "the answer's body is not what was sent")
		}
		for _, code := range g.info {
			if !slices.ContainsFunc(x.server, func(s step) bool { return s.field.Name == ":status" && s.field.Value == code }) &&
				!(code == "100" && slices.ContainsFunc(x.client, func(s step) bool { return s.field.Name == "expect" })) {
				report(i, "a 1xx that nobody sent")
			}
		}
		if r.hung {
			report(i, "it hung")
		}
	}
}

// summary is an exchange in a few words.
func (r *result) summary(x *script) string {
	var all []string
	for i, g := range r.got {
		v := newView(r, i)
		word := []string{g.status, g.end}
		if g.status == "" {
			word[0] = "-"
		}
		if v.got.ours() {
			word = append(word, "ours")
		}
		// Whether a request got through before its error is chance.
		if g.end == "END" && len(v.seen) > 0 && !v.refused() {
			word = append(word, "seen")
		}
		if r.conn != "" {
			word = append(word, r.conn)
		}
		switch {
		case x.wrong && (v.refused() || v.got.cut()):
			word = []string{"lost"}
		case v.refused():
			word = []string{"refused"}
		}
		all = append(all, strings.Join(word, " "))
	}
	return strings.Join(slices.Compact(all), ", ")
}
