package sigv4

import (
	"slices"
	"strings"

	"github.com/execproxy/execproxy/signer"
)

// maxPairs is how many pairs net/url parses; beyond it a query silently counts as empty
// in Go programs, the SDK's signer and many API servers among them.
const maxPairs = 10_000

// checkQuery tells what, if anything, keeps a raw query from having one meaning.
func checkQuery(query string) (problem string) {
	pairs := 1
	for i := 0; i < len(query); i++ {
		switch c := query[i]; {
		case c <= ' ' || c == 0x7f || c == '#':
			return "has a byte that must be percent-encoded"
		case c == ';':
			return "has a raw semicolon, which some read as data and some as a separator: send it as %3B"
		case c == '%' && !isEscape(query[i:]):
			return "has a '%' that no two hex digits follow: send it as %25"
		case c == '&':
			if pairs++; pairs > maxPairs {
				return "has more than 10000 parameters, which some servers read as none at all: send fewer"
			}
		}
	}
	return ""
}

// A pair is one query parameter, encoded for the canonical form.
type pair struct{ key, value string }

// pairs splits a checked query. Empty pairs vanish, as they carry nothing.
func pairs(query string) []pair {
	if query == "" {
		return nil
	}
	out := make([]pair, 0, strings.Count(query, "&")+1)
	for s := range strings.SplitSeq(query, "&") {
		if s == "" {
			continue
		}
		key, value, _ := strings.Cut(s, "=")
		out = append(out, pair{encodeQuery(key), encodeQuery(value)})
	}
	return out
}

// encodeQuery decodes a key or value, "+" being a space as in every form-encoded query, and
// encodes all but the unreserved characters.
func encodeQuery(s string) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		clean = unreserved(s[i])
	}
	if clean {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 8)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch c {
		case '+':
			c = ' '
		case '%':
			c = byte(unhex(s[i+1])<<4 | unhex(s[i+2]))
			i += 2
		}
		writeEncoded(&b, c)
	}
	return b.String()
}

// decoded undoes encodeQuery.
func decoded(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			c = byte(unhex(s[i+1])<<4 | unhex(s[i+2]))
			i += 2
		}
		b = append(b, c)
	}
	return string(b)
}

// canonicalQuery sorts by encoded key, then by encoded value.
func canonicalQuery(all []pair) string {
	slices.SortFunc(all, func(a, b pair) int {
		if c := strings.Compare(a.key, b.key); c != 0 {
			return c
		}
		return strings.Compare(a.value, b.value)
	})
	var b strings.Builder
	for i, p := range all {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(p.key)
		b.WriteByte('=')
		b.WriteString(p.value)
	}
	return b.String()
}

func requireQuery(query string) error {
	if problem := checkQuery(query); problem != "" {
		return &signer.RequestError{Field: "query", Problem: problem}
	}
	return nil
}
