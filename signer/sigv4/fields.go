package sigv4

import (
	"net/http"
	"strings"

	"github.com/execproxy/execproxy/signer"
)

// The fields of the scheme, in canonical form.
const (
	fieldAuthorization = "Authorization"
	fieldDate          = "X-Amz-Date"
	fieldToken         = "X-Amz-Security-Token"
	fieldSHA256        = "X-Amz-Content-Sha256"

	// TargetHeader is a signed field of this project: the lower-case hex SHA-256 of the raw
	// request target (path, and "?" with the query where there is one) as it was sent. It
	// binds what plain SigV4 leaves open: the order of repeated query keys, and the way path
	// and query were written. AWS services ignore it.
	TargetHeader = "X-Execproxy-Target-Sha256"
)

// The same, in lower case.
const (
	lowAuthorization = "authorization"
	lowDate          = "x-amz-date"
	lowToken         = "x-amz-security-token"
	lowSHA256        = "x-amz-content-sha256"
	lowTarget        = "x-execproxy-target-sha256"
)

// replaced tells whether a signer writes this field itself, lower-case.
func replaced(name string) bool {
	switch name {
	case lowAuthorization, lowDate, lowToken, lowSHA256, lowTarget:
		return true
	}
	return false
}

// neverSigned tells whether a field, lower-case, may change on its way: hop-by-hop fields,
// and those that libraries and intermediaries rewrite.
func neverSigned(name string) bool {
	switch name {
	case "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings",
		"user-agent", "x-amzn-trace-id", "accept-encoding", "expect", "host":
		return true
	}
	return strings.HasPrefix(name, "proxy-")
}

// mustBeSigned tells whether a verifier relies on a field, lower-case, wherever it is present.
func mustBeSigned(name string) bool {
	switch name {
	case "content-type", "content-encoding":
		return true
	}
	return strings.HasPrefix(name, "impersonate-") || strings.HasPrefix(name, "x-amz-") ||
		strings.HasPrefix(name, "x-execproxy-")
}

// single tells whether a field, lower-case, has exactly one value or is refused.
func single(name string) bool {
	switch name {
	case "impersonate-user", "impersonate-uid", "content-type", "content-length":
		return true
	}
	return replaced(name)
}

// checkField tells what keeps a field's values from having one meaning once they are
// joined and trimmed for the canonical form.
func checkField(name string, values []string) (problem string) {
	if !validName(name) {
		return badName
	}
	if single(name) && len(values) > 1 {
		return tooMany
	}
	for _, v := range values {
		if problem := checkValue(name, v, asItIs(v)); problem != "" {
			return problem
		}
	}
	return ""
}

const (
	withComma = "has a comma, which a signature cannot tell from two values"

	badName = "is not a valid field name"
	tooMany = "is there more than once"
	twice   = "is there twice, in different case"
)

// checkValue is checkField for one value, of which asItIs was asked.
func checkValue(name, v string, asIs bool) (problem string) {
	if asIs {
		if strings.HasPrefix(name, "impersonate-") && strings.Contains(v, ",") && !single(name) {
			return withComma
		}
		return ""
	}
	for i := 0; i < len(v); i++ {
		if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
			return "has a control character"
		}
	}
	trimmed := strings.Trim(v, " \t")
	// Unicode knows more spaces than HTTP; implementations differ in which they trim.
	if strings.TrimSpace(v) != trimmed {
		return "begins or ends with a Unicode space"
	}
	if !strings.HasPrefix(name, "impersonate-") {
		return ""
	}
	if strings.Contains(trimmed, "  ") {
		return "has two spaces in a row, which a signature cannot tell from one"
	}
	if strings.Contains(v, ",") && !single(name) {
		return withComma
	}
	return ""
}

// asItIs tells whether a value is free of control characters and is signed as it is. Where
// it says false, look closer.
func asItIs(v string) bool {
	return v == "" || !atEdge(v[0]) && !atEdge(v[len(v)-1]) && plain(v)
}

// atEdge tells whether a byte is or may belong to a space.
func atEdge(c byte) bool { return c <= ' ' || c >= 0x80 }

// fieldValue trims a value and reduces runs of spaces to one.
func fieldValue(v string) string {
	v, _ = trimValue(nil, v)
	return v
}

// trimValue is fieldValue in memory that is given: it returns a part of v where it can, else
// what it has appended to mem.
func trimValue(mem []byte, v string) (string, []byte) {
	v = strings.Trim(v, " \t")
	if !strings.Contains(v, "  ") {
		return v, mem
	}
	start := len(mem)
	for i := 0; i < len(v); i++ {
		if v[i] != ' ' || v[i-1] != ' ' {
			mem = append(mem, v[i])
		}
	}
	return text(mem[start:]), mem
}

// validName tells whether a field name is a token (RFC 9110, section 5.6.2).
func validName(name string) bool {
	for i := 0; i < len(name); i++ {
		if kinds[name[i]]&inToken == 0 {
			return false
		}
	}
	return name != ""
}

// lowered returns the header by lower-case name. Names that differ in case alone would be
// joined in an order that nobody defines, so they are refused.
func lowered(h http.Header) (map[string][]string, error) {
	out := make(map[string][]string, len(h))
	for name, values := range h {
		if len(values) == 0 {
			continue // not sent
		}
		low := strings.ToLower(name)
		if _, ok := out[low]; ok {
			return nil, &signer.RequestError{Field: fieldName(low), Problem: twice}
		}
		out[low] = values
	}
	return out, nil
}

// fieldName is a name fit for an error: whoever sends a bad one may have put a value there.
func fieldName(name string) string {
	if !validName(name) || len(name) > 100 {
		return "header"
	}
	return "header " + http.CanonicalHeaderKey(name)
}
