package sigv4

import (
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
func normalize(path string) string {
	var kept []string
	directory := false // whether the last segment names a directory: "", "." or ".."
	for segment := range strings.SplitSeq(path[1:], "/") {
		directory = true
		switch segment {
		case "", ".":
		case "..":
			if len(kept) > 0 {
				kept = kept[:len(kept)-1]
			}
		default:
			kept = append(kept, segment)
			directory = false
		}
	}
	out := "/" + strings.Join(kept, "/")
	if directory && len(kept) > 0 {
		out += "/"
	}
	return out
}

// encodeOnce brings an escaped path into the one form in which exactly the reserved bytes
// are encoded, with upper-case digits. An encoded slash stays encoded: it is data.
func encodeOnce(path string) string {
	var b strings.Builder
	b.Grow(len(path))
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '/' {
			b.WriteByte(c)
			continue
		}
		if c == '%' {
			c = byte(unhex(path[i+1])<<4 | unhex(path[i+2]))
			i += 2
		}
		writeEncoded(&b, c)
	}
	return b.String()
}

// viewPath returns the path as it enters the canonical form: checked, and normalised or
// encoded once where the rules say so. The second encoding is not done yet.
func viewPath(path string, mode PathMode, single bool) (string, error) {
	if problem := checkPath(path, mode); problem != "" {
		return "", &signer.RequestError{Field: "path", Problem: problem}
	}
	if mode == PathNormalized {
		path = normalize(path)
	}
	if single {
		path = encodeOnce(path)
	}
	return path, nil
}

const upperHex = "0123456789ABCDEF"

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// unreserved are the characters of RFC 3986, section 2.3, which SigV4 never encodes.
func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

func writeEncoded(b *strings.Builder, c byte) {
	if unreserved(c) {
		b.WriteByte(c)
		return
	}
	b.WriteByte('%')
	b.WriteByte(upperHex[c>>4])
	b.WriteByte(upperHex[c&15])
}
