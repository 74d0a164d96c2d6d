package sigv4

import (
	"bytes"
	"strings"

	"github.com/execproxy/execproxy/signer"
)

// PathMode says which path is signed where a path has empty or dot segments. AWS normalises
// paths for every service but S3, the SDKs and many verifiers do not, so one signature
// cannot be right for both.
type PathMode int

const (
	// PathStrict refuses paths with empty segments ("//") and dot segments ("." and "..",
	// written plainly or as %2e). All other paths have one canonical form only.
	PathStrict PathMode = iota

	// PathExact signs the path as it is sent. It is the rule of S3 and of the SDKs.
	PathExact

	// PathNormalized signs the path after removing empty and dot segments (RFC 3986,
	// section 5.2.4), as AWS documents it for services other than S3. What is sent is not
	// touched. Paths that differ only in such segments have the same signature.
	PathNormalized
)

// simplePath tells whether a path is signed as it is, whatever the mode: it has nothing but
// unreserved characters and slashes, and no segment that is empty or begins with a dot. That
// is so for nearly all of Kubernetes, so it is one look without branches.
func simplePath(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	all, odd, before := byte(inPath), byte(0), byte(0)
	for i := 0; i < len(path); i++ {
		kind := kinds[path[i]]
		all &= kind
		odd |= kind & (before << 1)
		before = kind & slash
	}
	return all != 0 && odd&slashOrDot == 0
}

// checkPath tells what, if anything, keeps an escaped path from being signed.
func checkPath(path string, mode PathMode) (problem string) {
	if !strings.HasPrefix(path, "/") {
		return "does not begin with a slash"
	}
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c <= ' ' || c >= 0x7f:
			return "has a byte that must be percent-encoded"
		case c == '?' || c == '#':
			return "has a raw '" + string(rune(c)) + "': percent-encode it"
		case c == '%' && !isEscape(path[i:]):
			return "has a '%' that no two hex digits follow: send it as %25"
		}
	}
	if mode == PathExact {
		return ""
	}
	for rest, more := path[1:], true; more; {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		switch plain := segment == "." || segment == ".."; {
		case segment == "" && more && mode == PathStrict:
			return "has an empty segment (//), which signers and verifiers treat differently: send it without"
		case plain && mode == PathStrict, !plain && isEscapedDots(segment):
			return "has a dot segment, which signers and verifiers treat differently: send the resolved path"
		}
	}
	return ""
}

// isEscape tells whether s begins with a percent-encoded byte.
func isEscape(s string) bool {
	return len(s) >= 3 && s[0] == '%' && unhex(s[1]) >= 0 && unhex(s[2]) >= 0
}

// isEscapedDots tells whether a segment is "." or ".." once it is decoded.
func isEscapedDots(segment string) bool {
	if len(segment) > len("%2e%2e") {
		return false
	}
	s := strings.ReplaceAll(strings.ToLower(segment), "%2e", ".")
	return s == "." || s == ".."
}

// normalize removes empty and dot segments; a trailing slash stays.
func normalize(path string) string { return string(appendNormalized(nil, path)) }

func appendNormalized(b []byte, path string) []byte {
	start := len(b)
	directory := false // whether the last segment names a directory: "", "." or ".."
	for rest, more := path[1:], true; more; {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		directory = true
		switch segment {
		case "", ".":
		case "..":
			b = b[:start+max(0, bytes.LastIndexByte(b[start:], '/'))]
		default:
			b = append(append(b, '/'), segment...)
			directory = false
		}
	}
	if directory || len(b) == start {
		b = append(b, '/')
	}
	return b
}

// appendEncodedOnce brings an escaped path into the one form in which exactly the reserved
// bytes are encoded, with upper-case digits. An encoded slash stays encoded: it is data.
func appendEncodedOnce(b []byte, path string) []byte {
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '/' {
			b = append(b, c)
			continue
		}
		if c == '%' {
			c = byte(unhex(path[i+1])<<4 | unhex(path[i+2]))
			i += 2
		}
		b = appendEncoded(b, c)
	}
	return b
}

// appendEncodedTwice encodes what is escaped already, the percent signs too.
func appendEncodedTwice(b []byte, path string) []byte {
	done := 0
	for i := 0; i < len(path); i++ {
		if c := path[i]; c != '/' && kinds[c]&unreserved == 0 {
			b = appendEncoded(append(b, path[done:i]...), c)
			done = i + 1
		}
	}
	return append(b, path[done:]...)
}

// appendPath appends the path of the canonical request. The path was checked.
func appendPath(b []byte, path string, mode PathMode, singleEncode bool) []byte {
	start := len(b)
	if mode == PathNormalized {
		b = appendNormalized(b, path)
		path = text(b[start:])
	}
	encoded := len(b)
	if singleEncode {
		b = appendEncodedOnce(b, path)
	} else {
		b = appendEncodedTwice(b, path)
	}
	return append(b[:start], b[encoded:]...)
}

// canonicalPath checks a path and returns that of the canonical request.
func canonicalPath(path string, mode PathMode, singleEncode bool) (string, error) {
	if err := requirePath(path, mode); err != nil {
		return "", err
	}
	return text(appendPath(make([]byte, 0, len(path)+16), path, mode, singleEncode)), nil
}

func requirePath(path string, mode PathMode) error {
	if problem := checkPath(path, mode); problem != "" {
		return &signer.RequestError{Field: "path", Problem: problem}
	}
	return nil
}
