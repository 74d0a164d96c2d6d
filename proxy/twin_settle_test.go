package proxy

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
)

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
