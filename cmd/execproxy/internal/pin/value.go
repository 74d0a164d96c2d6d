package pin

import "bytes"

// maxValue is the length of the longest PIN, in bytes. Tokens and TPMs take fewer.
const maxValue = 256

// maxRead is how much has to be read to know that it is too long: a value, a line end, one more.
const maxRead = maxValue + 3

// Wipe overwrites a value. Who holds one last calls it.
func Wipe(value []byte) { clear(value) }

// line returns the one line that raw is, without its end. The result is part of raw.
func line(raw []byte) (value []byte, problem, cure string) {
	if rest, ok := bytes.CutSuffix(raw, []byte("\n")); ok {
		raw = bytes.TrimSuffix(rest, []byte("\r"))
	}
	problem, cure = check(raw)
	return raw, problem, cure
}

// check tells what keeps a value from being a PIN. A home that is not even asked is a try less.
func check(value []byte) (problem, cure string) {
	switch {
	case len(value) == 0:
		return "it is empty", "put the PIN there"
	case bytes.HasPrefix(value, []byte("\xef\xbb\xbf")), bytes.HasPrefix(value, []byte("\xff\xfe")), bytes.HasPrefix(value, []byte("\xfe\xff")):
		return "it begins with a byte order mark", "save it as plain text without one"
	case bytes.IndexByte(value, 0) >= 0:
		return "it has a NUL byte", "save it as plain text, not as UTF-16 and not as a binary file"
	case bytes.ContainsAny(value, "\r\n"):
		return "it has more than one line", "leave the PIN alone in it"
	case len(value) > maxValue:
		return "it is longer than 256 bytes", "put the PIN alone there"
	}
	return "", ""
}

// typed is check for what came from a keyboard: an arrow or a Ctrl-Z in it was a slip.
func typed(value []byte) (problem, cure string) {
	if bytes.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "a control key was typed", "type it again"
	}
	return check(value)
}
