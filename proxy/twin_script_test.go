package proxy

import (
	"encoding/hex"
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

// content is what a body consists of: no byte is where another could be.
func content(from, n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		j := from + i
		b[i] = byte(j*7) ^ byte(j>>8)*13 ^ seed
	}
	return b
}
