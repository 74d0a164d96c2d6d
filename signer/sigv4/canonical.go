package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/execproxy/execproxy/signer"
)

const (
	algorithm  = "AWS4-HMAC-SHA256"
	terminator = "aws4_request"
	timeFormat = "20060102T150405Z"
	dateFormat = "20060102"
)

// DeriveKey returns the signing key of a secret for one day (UTC, as 20060102), region and
// service. Unlike the secret it is good for nothing else, so it is what a verifier holds.
func DeriveKey(secret, date, region, service string) []byte {
	key := hmacSHA256([]byte("AWS4"+secret), date)
	key = hmacSHA256(key, region)
	key = hmacSHA256(key, service)
	return hmacSHA256(key, terminator)
}

func hmacSHA256(key []byte, data string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(data))
	return h.Sum(nil)
}

// scope is where a signature is valid.
type scope struct{ date, region, service string }

func (s scope) String() string {
	return s.date + "/" + s.region + "/" + s.service + "/" + terminator
}

// canonical is a request in the form that is signed.
type canonical struct {
	method, path, query string
	names               []string            // signed fields, lower-case, sorted
	fields              map[string][]string // their values
	payload             string
}

// String writes the canonical request as AWS defines it.
func (c *canonical) String() string {
	var b strings.Builder
	b.Grow(512)
	for _, s := range []string{c.method, c.path, c.query} {
		b.WriteString(s)
		b.WriteByte('\n')
	}
	for _, name := range c.names {
		b.WriteString(name)
		b.WriteByte(':')
		for i, v := range c.fields[name] {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(fieldValue(v))
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	for i, name := range c.names {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(name)
	}
	b.WriteByte('\n')
	b.WriteString(c.payload)
	return b.String()
}

func stringToSign(date string, s scope, canonicalRequest string) string {
	sum := sha256.Sum256([]byte(canonicalRequest))
	return algorithm + "\n" + date + "\n" + s.String() + "\n" + hex.EncodeToString(sum[:])
}

// canonicalPath is the path of the canonical request.
func canonicalPath(path string, mode PathMode, singleEncode bool) (string, error) {
	path, err := viewPath(path, mode, singleEncode)
	if err != nil || singleEncode {
		return path, err
	}
	var b strings.Builder
	b.Grow(len(path))
	for i := 0; i < len(path); i++ {
		if path[i] == '/' {
			b.WriteByte('/')
			continue
		}
		writeEncoded(&b, path[i])
	}
	return b.String(), nil
}

// isHash tells whether s is a lower-case hex SHA-256.
func isHash(s string) bool {
	if len(s) != 2*sha256.Size {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// targetHash is the value of TargetHeader.
func targetHash(r *signer.Request) string {
	sum := sha256.Sum256([]byte(r.Target()))
	return hex.EncodeToString(sum[:])
}
