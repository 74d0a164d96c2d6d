package proxy

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// What one side of an exchange of FuzzTwins does, one step on a line. A line that is no step is none, so that
// whatever the fuzzer makes of it is a script.
//
// Both sides:
//
//	name: value              a field of the next block; \n, \r, \t, \\ and \xNN are unescaped
//	HEADERS [end] [cut=N] [pad=N] [plain] [prio]
//	                         sends the fields as a block: a head, or trailers. cut: CONTINUATION after every N bytes;
//	                         plain: never indexed
//	DATA N [pad=N] [end]
//	RST code
//	WINDOW N                 for the stream. SETTINGS window=N on a client makes it grant nothing by itself
//	CWINDOW N                for the connection
//	PING, PRIORITY
//	SETTINGS name=N …        a number, or table, push, streams, window, frame, list
//	FRAME type flags s|0|n|e hex
//	                         anything: on this stream, the connection, the next stream, an even one
//
// The client:
//
//	PARALLEL N               does it all N times at once, on one connection
//	WAIT seen | head | continue | end | read N | body N
//	                         for the server to have the head, to have read N bytes; for the answer's head, a 100, N bytes,
//	                         its end
//
// The server. Unless it says EARLY, it reads all before its head. What is left at the end is done: a head with
// :status 200, the end of the stream with what fields are left as trailers:
//
//	FRAMES                   it is frames, and not net/http
//	EARLY
//	READ N | all
//	WAIT gone | head | body N
//	                         for the client to have left, to have the head, to have N bytes
type step struct {
	do     string
	field  hpack.HeaderField
	what   string // of WAIT
	n      int    // of DATA, READ (-1: all), WINDOW, WAIT; the code of RST
	end    bool
	plain  bool
	prio   bool
	cut    int
	pad    int
	set    []http2.Setting
	stream byte // of FRAME
	kind   http2.FrameType
	flags  http2.Flags
	data   []byte
}

const (
	maxSteps   = 48
	maxCopies  = 4
	maxContent = 400 << 10 // bytes of one body
	maxBlock   = 32 << 10  // bytes of all fields
	markField  = "x-twin"  // tells the upstream whose turn it is
)

var settingNames = map[string]http2.SettingID{
	"table": http2.SettingHeaderTableSize, "push": http2.SettingEnablePush, "streams": http2.SettingMaxConcurrentStreams,
	"window": http2.SettingInitialWindowSize, "frame": http2.SettingMaxFrameSize, "list": http2.SettingMaxHeaderListSize,
}

// parseScript reads a script.
func parseScript(text string) (steps []step) {
	content, block := 0, 0
	for line := range strings.Lines(text) {
		if len(steps) == maxSteps {
			break
		}
		line = strings.TrimSuffix(line, "\n")
		s, ok := parseStep(line)
		if !ok {
			continue
		}
		switch s.do {
		case "field":
			if block += len(s.field.Name) + len(s.field.Value); block > maxBlock || strings.EqualFold(s.field.Name, markField) {
				continue
			}
		case "DATA":
			if content += s.n; content > maxContent {
				continue
			}
		}
		steps = append(steps, s)
	}
	return steps
}

func parseStep(line string) (step, bool) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "HEADERS", "DATA", "RST", "WINDOW", "CWINDOW", "PING", "PRIORITY", "SETTINGS", "FRAME", "PARALLEL", "WAIT", "FRAMES", "EARLY", "READ":
		s := step{do: word}
		return s, s.arguments(strings.Fields(rest))
	}
	if len(line) < 2 {
		return step{}, false
	}
	i := strings.Index(line[1:], ": ") // a pseudo field starts with a colon
	if i < 0 {
		return step{}, false
	}
	return step{do: "field", field: hpack.HeaderField{Name: unescape(line[:i+1]), Value: unescape(line[i+3:])}}, true
}

// arguments reports whether the step makes sense.
func (s *step) arguments(args []string) bool {
	number := func(text string, most int) int {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return 0
		}
		return min(n, most)
	}
	if s.do == "FRAME" {
		if len(args) < 3 {
			return false
		}
		s.kind, s.flags, s.stream = http2.FrameType(number(args[0], 255)), http2.Flags(number(args[1], 255)), args[2][0]
		if len(args) > 3 {
			text := args[3][:min(len(args[3])&^1, 2048)]
			s.data, _ = hex.DecodeString(text)
		}
		return true
	}
	for i, a := range args {
		name, value, ok := strings.Cut(a, "=")
		switch {
		case s.do == "WAIT" && i == 0:
			s.what = a
		case ok && s.do == "SETTINGS":
			id, known := settingNames[name]
			if !known {
				id = http2.SettingID(number(name, 1<<16-1))
			}
			n, err := strconv.ParseUint(value, 10, 32)
			if err == nil && len(s.set) < 8 {
				s.set = append(s.set, http2.Setting{ID: id, Val: uint32(n)})
			}
		case ok && name == "cut":
			s.cut = number(value, 1<<14)
		case ok && name == "pad":
			s.pad = number(value, 255)
		case a == "end":
			s.end = true
		case a == "plain":
			s.plain = true
		case a == "prio":
			s.prio = true
		case a == "all":
			s.n = -1
		default:
			s.n = number(a, 1<<31-1)
		}
	}
	switch s.do {
	case "READ":
		return s.n != 0
	case "WAIT":
		return s.what != ""
	case "DATA":
		s.n = max(s.n, 0)
		return s.n <= maxContent
	case "WINDOW", "CWINDOW":
		s.n = max(s.n, 0)
	case "PARALLEL":
		s.n = min(max(s.n, 1), maxCopies)
	}
	return true
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'x':
			if i+2 < len(s) {
				if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
					b.WriteByte(byte(c))
					i += 2
					continue
				}
			}
			b.WriteByte('x')
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// script is an exchange: what the client does, and what the server.
type script struct {
	client, server []step
	copies         int
	frames         bool // the server is frames
	early          bool // the server may answer before it has all
	wild           bool // something for the connection is in it: it has one of its own
	wrong          bool // the client does what ends its stream or its connection, sooner or later
	short          bool // the body does not have the length that was announced
	again          bool // the server says that it did nothing: it may be asked again
	manual         bool // the client grants no windows by itself
}

func has(steps []step, do ...string) bool {
	for i := range steps {
		for _, d := range do {
			if steps[i].do == d {
				return true
			}
		}
	}
	return false
}

// irregular reports whether the client does what may cost it the connection, or
// what another exchange on it would notice.
func irregular(client []step) bool {
	blocks, ended := 0, false
	for _, s := range client {
		switch s.do {
		case "SETTINGS", "FRAME", "CWINDOW", "WINDOW":
			return true
		case "HEADERS":
			if ended || blocks == 1 && !s.end || blocks == 2 {
				return true
			}
			blocks++
			ended = ended || s.end
		case "DATA":
			if blocks == 0 || ended {
				return true
			}
			ended = ended || s.end
		case "RST":
			if blocks == 0 {
				return true
			}
			ended = true
		}
	}
	return false
}

// newScript makes an exchange in which nobody waits for what cannot come.
// held: the proxy sends nothing before it has the whole body.
func newScript(client, server string, held bool) *script {
	x := &script{client: parseScript(client), server: parseScript(server), copies: 1}
	for _, s := range x.client {
		if s.do == "PARALLEL" {
			x.copies = s.n
		}
		for _, set := range s.set {
			x.manual = x.manual || set.ID == http2.SettingInitialWindowSize
		}
	}
	x.frames, x.early = has(x.server, "FRAMES"), has(x.server, "EARLY")
	x.wild = irregular(x.client)
	if x.wild {
		x.copies = 1
	}
	x.resets()
	x.refusals()
	if !x.early {
		x.server = append([]step{{do: "READ", n: -1}}, x.server...)
	}
	x.settle(held)
	if n := announced(x.client); n >= 0 {
		for _, s := range x.client {
			if s.do == "DATA" {
				n -= s.n
			}
		}
		x.short = n != 0
		// An answer may overtake what is wrong with the body only where nobody has to read it.
		x.wrong = x.wrong || x.short && (x.early || announced(x.client) == 0)
	}
	return x
}

// resets takes out those with which net/http's own transport, and not the proxy,
// deals: it sends again what has no body, without end after PROTOCOL_ERROR and
// for half a minute after REFUSED_STREAM.
func (x *script) resets() {
	content := 0
	for _, s := range x.client {
		if s.do == "DATA" {
			content += s.n
		}
	}
	x.server = slices.Clone(x.server)
	for i := range x.server {
		s := &x.server[i]
		if s.do == "HEADERS" || s.do == "DATA" {
			return
		}
		if s.do != "RST" {
			continue
		}
		if code := http2.ErrCode(s.n); content == 0 && (code == http2.ErrCodeProtocol || code == http2.ErrCodeRefusedStream) {
			s.n = int(http2.ErrCodeInternal)
		}
		x.again = http2.ErrCode(s.n) == http2.ErrCodeRefusedStream || http2.ErrCode(s.n) == http2.ErrCodeProtocol
		return
	}
}

// refusals takes out the reading behind a status over 299: there net/http's
// transport stops an upload without ending it.
func (x *script) refusals() {
	status, refused := "200", false
	for i := range x.server {
		switch s := &x.server[i]; s.do {
		case "field":
			if s.field.Name == ":status" {
				status = s.field.Value
			}
		case "HEADERS", "DATA":
			refused = refused || status > "299"
		case "READ":
			if refused {
				*s = step{}
			}
		}
	}
}

// firstSettings finds the SETTINGS with which the client's connection begins.
func firstSettings(client []step) (int, bool) {
	i := slices.IndexFunc(client, func(s step) bool { return s.do != "field" && s.do != "PARALLEL" })
	return i, i >= 0 && client[i].do == "SETTINGS"
}

// buffered is how much of a body a proxy surely takes from one side while the
// other does not want it.
const buffered = 16 << 10

// settle plays both sides against each other without a network, and takes out
// each wait that stands in the way.
func (x *script) settle(held bool) {
	type side struct {
		steps       []step
		at          int
		head, ended bool
		body        int
	}
	c, s := &side{steps: x.client}, &side{steps: x.server}
	window := 1 << 30
	if x.manual {
		window = 1 << 20 // what twin.dial says
		if _, ok := firstSettings(x.client); ok {
			window = 65535
		}
	}
	headless := false // the answer has no body
	for _, f := range x.client {
		headless = headless || f.field.Name == ":method" && f.field.Value == "HEAD"
	}
	granted := 0                // by WINDOW
	read, goal, full := 0, 0, 0 // what the server has read, wants to, has to send
	announced := announced(x.client)
	begun := -1 // the server's step that set goal or full
	length, broken := -1, false
	status := "200"
	sent := func() bool { return c.head && (!held || c.ended) }
	visible := func() bool {
		return s.ended || broken || s.head && !headless && status != "204" && status != "304" && (length < 0 || s.body > 0)
	}
	over := func() bool { return s.ended || broken }
	arrived := func() bool { return broken || s.ended && s.body <= window+granted }
	clientStep := func(p *step) bool {
		switch p.do {
		case "HEADERS":
			x.wrong = x.wrong || c.ended
			broken = broken || c.ended
			c.ended = c.ended || p.end
			broken = broken || c.head && c.ended && c.body < announced
			c.head = true
		case "DATA":
			x.wrong = x.wrong || c.ended || !c.head
			broken = broken || c.ended
			if !over() && c.body+p.n > goal+buffered && !held {
				return false
			}
			c.body += p.n
			c.ended = c.ended || p.end
			broken = broken || announced >= 0 && (c.body > announced || c.ended && c.body < announced)
		case "RST":
			c.ended, broken = true, true
		case "FRAME", "CWINDOW":
			x.wrong = true // perhaps
		case "WINDOW":
			granted += p.n
			x.wrong = x.wrong || !c.head
			if p.n == 0 || granted+window > 1<<31-1 {
				broken, x.wrong = true, true
			}
		case "SETTINGS":
			for _, set := range p.set {
				x.wrong = x.wrong || set.Valid() != nil
				if set.ID == http2.SettingInitialWindowSize {
					window = int(min(set.Val, 1<<30))
				}
			}
		case "WAIT":
			if !c.head {
				return true // for nothing
			}
			switch p.what {
			case "seen":
				return sent() || over()
			case "head":
				return visible()
			case "continue":
				return visible() || expects(x.client) && c.head && !c.ended
			case "end":
				return arrived()
			case "read":
				return sent() && read >= p.n || over()
			case "body":
				return arrived() || min(s.body, window+granted) >= p.n && visible()
			}
		}
		return true
	}
	serverStep := func(p *step) bool {
		if !sent() {
			return false
		}
		switch p.do {
		case "field":
			switch p.field.Name {
			case ":status":
				status = p.field.Value
			case "content-length":
				if n, err := strconv.Atoi(p.field.Value); err == nil && !s.head {
					length = n
				}
			}
		case "READ":
			if begun != s.at {
				begun, goal = s.at, 1<<30
				if p.n >= 0 {
					goal = read + p.n
				}
			}
			read = min(goal, c.body)
			return c.ended || p.n >= 0 && read == goal
		case "HEADERS":
			if strings.HasPrefix(status, "1") && !s.head {
				status = "200"
				return true
			}
			s.ended = s.ended || p.end || s.head
			s.head = true
		case "DATA":
			s.head = true
			if begun != s.at {
				begun, full = s.at, s.body
				if !headless && status != "204" && status != "304" {
					full += p.n
				}
			}
			s.body = full
			if !over() && c.at < len(c.steps) {
				s.body = min(full, window+granted+buffered)
			}
			if s.body < full {
				return false
			}
			broken = broken || length >= 0 && s.body > length
			s.ended = s.ended || p.end
		case "RST":
			broken = true
		case "WAIT":
			switch p.what {
			case "head":
				return visible()
			case "body":
				return visible() && min(s.body, window+granted) >= p.n
			case "gone":
				return broken
			}
		}
		return true
	}
	for c.at < len(c.steps) || s.at < len(s.steps) {
		moved := false
		for c.at < len(c.steps) && clientStep(&c.steps[c.at]) {
			c.at++
			moved = true
		}
		if c.at == len(c.steps) {
			c.ended, window = true, 1<<30 // what the client does at its end
			c.head = true
		}
		for s.at < len(s.steps) && serverStep(&s.steps[s.at]) {
			s.at++
			moved = true
		}
		if s.at == len(s.steps) {
			s.head, s.ended, read, goal = true, true, c.body, 1<<30
		}
		switch {
		case moved:
		case c.at < len(c.steps) && c.steps[c.at].do == "WAIT":
			c.steps[c.at] = step{}
		case s.at < len(s.steps) && s.steps[s.at].do == "WAIT":
			s.steps[s.at] = step{}
		case c.at < len(c.steps): // DATA that nobody reads
			c.steps[c.at] = step{}
		default: // the server, without a request or a reader
			s.steps[s.at] = step{}
		}
	}
}

// announced is the length that the client announces; -1: none, or none that
// counts.
func announced(client []step) int {
	length := -1
	for _, s := range client {
		if s.do == "HEADERS" {
			break
		}
		if s.do == "field" && s.field.Name == "content-length" {
			n, err := strconv.Atoi(s.field.Value)
			if err != nil || length >= 0 {
				return -1
			}
			length = n
		}
	}
	return length
}

func expects(client []step) bool {
	for _, s := range client {
		if s.do == "field" && s.field.Name == "content-length" && strings.Trim(s.field.Value, "0") == "" {
			return false
		}
	}
	for _, s := range client {
		if s.do == "field" && s.field.Name == "expect" && s.field.Value == "100-continue" {
			return true
		}
	}
	return false
}

// content is what a body consists of: no byte is where another could be.
func content(from, n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		j := from + i
		b[i] = byte(j*7) ^ byte(j>>8)*13 ^ seed
	}
	return b
}
