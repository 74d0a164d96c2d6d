package sigv4

import (
	"net/http"
	"strings"

	"github.com/execproxy/execproxy/signer"
)

// flatten lays a header out as the list of fields that it is sent as. Names that differ in
// case alone would be joined in an order that nobody defines, so they are refused.
func (f *form) flatten(h http.Header) error {
	f.given = f.given[:0]
	for name, values := range h {
		if len(values) == 0 {
			continue // not sent
		}
		low := lowerName(name)
		for _, v := range values {
			f.given = append(f.given, signer.Field{Name: low, Value: v})
		}
		if replaced(low) || neverSigned(low) {
			continue
		}
		if single(low) && len(values) > 1 {
			return &signer.RequestError{Field: fieldName(low), Problem: tooMany}
		}
		if http.CanonicalHeaderKey(name) == name {
			continue
		}
		for other, values := range h {
			if other != name && len(values) > 0 && lowerName(other) == low {
				return &signer.RequestError{Field: fieldName(low), Problem: twice}
			}
		}
	}
	return nil
}

// lowerNames are those that clients of Kubernetes send with every request.
var lowerNames = func() map[string]string {
	names := map[string]string{}
	for _, low := range []string{"accept", "accept-encoding", "audit-id", "content-encoding", "content-type", "impersonate-group",
		"impersonate-uid", "impersonate-user", "kubectl-command", "kubectl-session", "traceparent", "user-agent"} {
		names[http.CanonicalHeaderKey(low)] = low
	}
	return names
}()

// lowerName returns a name with its ASCII letters, and no others, in lower case.
func lowerName(name string) string {
	if low := lowerNames[name]; low != "" {
		return low
	}
	if strings.IndexFunc(name, func(r rune) bool { return 'A' <= r && r <= 'Z' }) < 0 {
		return name
	}
	b := []byte(name)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return text(b)
}

// canonicalName is the canonical form of a field of ours.
func canonicalName(low string) string {
	switch low {
	case lowAuthorization:
		return fieldAuthorization
	case lowDate:
		return fieldDate
	case lowToken:
		return fieldToken
	case lowSHA256:
		return fieldSHA256
	}
	return TargetHeader
}
