package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// A target is what goes on the request line: path and query, byte for byte.
type target struct {
	path  string // escaped, with the base path of the server before it
	query string // without '?'
	mark  bool   // there was a '?', also before an empty query
}

var (
	errTargetForm   = errors.New("the request target must be a path")
	errTargetBytes  = errors.New("the request target has a space, a control character or a fragment in it")
	errTargetDots   = errors.New("dot segments in the path would leave the base path of the server")
	errTargetSlash  = errors.New("the path starts with // and has characters in it that must be percent-encoded")
	errTargetEscape = errors.New("the path has an incomplete percent-encoding")
)

// parseTarget takes the raw request target: origin-form, or, over HTTP/1.1, the
// absolute-form of RFC 9112 section 3.2.2, of which only path and query count.
// What it cannot keep exactly is an error.
func parseTarget(raw, base string, http1 bool) (target, error) {
	for i := 0; i < len(raw); i++ {
		// Go's HTTP/2 server lets a space through, which would split the
		// request line of an HTTP/1.1 server.
		if c := raw[i]; c <= ' ' || c == 0x7f || c == '#' {
			return target{}, errTargetBytes
		}
	}
	if !strings.HasPrefix(raw, "/") {
		if !http1 {
			return target{}, errTargetForm
		}
		var ok bool
		if raw, ok = cutAuthority(raw); !ok {
			return target{}, errTargetForm
		}
	}
	var t target
	t.path, t.query, t.mark = strings.Cut(raw, "?")
	if t.path == "" {
		t.path = "/" // RFC 9112 section 3.2.1
	}
	if !wholeEscapes(t.path) {
		return target{}, errTargetEscape
	}
	if base != "" {
		if hasDots(t.path) {
			return target{}, errTargetDots
		}
		if !within(t.path, base) {
			t.path = base + t.path
		}
	}
	if strings.HasPrefix(t.path, "//") {
		// The one shape that URL.Opaque cannot carry; see url below.
		if u := t.url("https", "server"); u.EscapedPath() != t.path {
			return target{}, errTargetSlash
		}
	}
	return t, nil
}

// within reports whether a path has the base path already. A client that was given
// the server's URL, or a loopback one with its path, joins the two by itself: for a
// webhook the base path is the whole of it, and nobody else could say whether a
// slash ends it.
func within(path, base string) bool {
	rest, ok := strings.CutPrefix(path, base)
	return ok && (rest == "" || rest[0] == '/')
}

// cutAuthority removes "https://authority" from an absolute-form target.
func cutAuthority(raw string) (string, bool) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !strings.EqualFold(scheme, "https") && !strings.EqualFold(scheme, "http") {
		return "", false
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	if end == 0 || strings.Contains(rest[:end], "@") {
		return "", false
	}
	return rest[end:], true
}

func wholeEscapes(path string) bool {
	for i := strings.IndexByte(path, '%'); i >= 0; {
		if i+2 >= len(path) || !isHex(path[i+1]) || !isHex(path[i+2]) {
			return false
		}
		next := strings.IndexByte(path[i+3:], '%')
		if next < 0 {
			break
		}
		i += 3 + next
	}
	return true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func hasDots(path string) bool {
	if !strings.Contains(path, ".") && !strings.Contains(path, "%") {
		return false
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return true
	}
	// A server that decodes first sees "%2f" and, on some, "\" as separators.
	for s := range strings.FieldsFuncSeq(plain, func(r rune) bool { return r == '/' || r == '\\' }) {
		if s == "." || s == ".." {
			return true
		}
	}
	return false
}

// url gives the target in the shape that makes net/http's transports write it
// unchanged. URL.Opaque is written as it is, but one that starts with "//" is
// turned into an absolute-form; Path and RawPath keep that one, as long as the
// escaping is one that net/url would accept.
func (t target) url(scheme, host string) *url.URL {
	u := &url.URL{Scheme: scheme, Host: host, RawQuery: t.query, ForceQuery: t.mark}
	if strings.HasPrefix(t.path, "//") {
		u.RawPath = t.path
		u.Path, _ = url.PathUnescape(t.path)
		return u
	}
	u.Opaque = t.path
	return u
}

// endless reports whether the answer to r has no end of its own, by the query
// parameters of the Kubernetes API.
func endless(r *http.Request) bool {
	return r.Method == http.MethodGet && endlessQuery(r.URL.RawQuery)
}

func endlessQuery(query string) bool {
	for pair := range strings.SplitSeq(query, "&") {
		switch pair {
		case "watch=true", "watch=1", "follow=true", "follow=1":
			return true
		}
	}
	return false
}
