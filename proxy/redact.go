package proxy

import "strings"

const (
	redactRun  = 20  // as short as an access key id
	redactText = 400 // bytes of a message that are shown
)

// redact is the second line of defence: errors must not have secrets in them,
// but those of signers and transports come from elsewhere. It takes out what
// looks like a key or a token (20 or more letters, digits and signs of base64
// in a row, not letters alone) and gives one line.
func redact(s string) string {
	if i := strings.IndexAny(s, "\r\n"); i >= 0 {
		s = s[:i]
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		j, digits := i, 0
		for ; j < len(s) && isTokenByte(s[j]); j++ {
			if '0' <= s[j] && s[j] <= '9' {
				digits++
			}
		}
		switch {
		case j == i:
			b.WriteByte(s[i])
			j++
		case j-i >= redactRun && digits > 0:
			b.WriteString("[redacted]")
		default:
			b.WriteString(s[i:j])
		}
		i = j
	}
	if b.Len() > redactText {
		return strings.ToValidUTF8(b.String()[:redactText], "") + "…"
	}
	return b.String()
}

// redactUpstream is for errors of a transport: net/http quotes what the server
// sent, which may be anything.
func redactUpstream(err error) string {
	s := err.Error()
	if i, j := strings.IndexByte(s, '"'), strings.LastIndexByte(s, '"'); i < j {
		s = s[:i+1] + "…" + s[j:]
	}
	return redact(s)
}

func isTokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '+' || c == '_' || c == '-' || c == '='
}
