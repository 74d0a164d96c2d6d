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
		c := query[i]
		if kinds[c]&unreserved != 0 {
			continue
		}
		switch {
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
	all, _ := splitQuery(make([]pair, 0, strings.Count(query, "&")+1), nil, query)
	return all
}

// splitQuery is pairs in memory that is given: it appends to all, and to mem what it had to
// write anew. The pairs lie in query and mem.
func splitQuery(all []pair, mem []byte, query string) ([]pair, []byte) {
	for more := query != ""; more; {
		var key, value string
		key, query, more = strings.Cut(query, "&")
		if key == "" {
			continue
		}
		key, value, _ = strings.Cut(key, "=")
		key, mem = encodeQuery(mem, key)
		value, mem = encodeQuery(mem, value)
		all = append(all, pair{key, value})
	}
	return all, mem
}

// encodeQuery decodes a key or value, "+" being a space as in every form-encoded query, and
// encodes all but the unreserved characters: where it is so written already it returns s,
// else what it has appended to mem.
func encodeQuery(mem []byte, s string) (string, []byte) {
	done := 0
	for done < len(s) {
		if kinds[s[done]]&unreserved != 0 {
			done++
		} else if isCanonicalEscape(s[done:]) {
			done += 3
		} else {
			break
		}
	}
	if done == len(s) {
		return s, mem
	}
	start := len(mem)
	mem = append(mem, s[:done]...)
	for i := done; i < len(s); i++ {
		c := s[i]
		switch c {
		case '+':
			c = ' '
		case '%':
			c = byte(unhex(s[i+1])<<4 | unhex(s[i+2]))
			i += 2
		}
		mem = appendEncoded(mem, c)
	}
	return text(mem[start:]), mem
}

// isCanonicalEscape tells whether s begins with a byte that is percent-encoded as it must be.
func isCanonicalEscape(s string) bool {
	if !isEscape(s) || s[1] >= 'a' || s[2] >= 'a' {
		return false
	}
	return kinds[byte(unhex(s[1])<<4|unhex(s[2]))]&unreserved == 0
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
	n := 0
	for _, p := range all {
		n += len(p.key) + len(p.value) + 2
	}
	return text(appendQuery(make([]byte, 0, n), all))
}

func appendQuery(b []byte, all []pair) []byte {
	slices.SortFunc(all, func(a, b pair) int {
		if c := strings.Compare(a.key, b.key); c != 0 {
			return c
		}
		return strings.Compare(a.value, b.value)
	})
	for i, p := range all {
		if i > 0 {
			b = append(b, '&')
		}
		b = append(b, p.key...)
		b = append(b, '=')
		b = append(b, p.value...)
	}
	return b
}

func requireQuery(query string) error {
	if problem := checkQuery(query); problem != "" {
		return &signer.RequestError{Field: "query", Problem: problem}
	}
	return nil
}
