package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"

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

// canonical is a request in the form that is signed, as a verifier has it.
type canonical struct {
	method, path, query string
	names               []string            // signed fields, lower-case, sorted
	fields              map[string][]string // their values
	payload             string
}

// String writes the canonical request as AWS defines it.
func (c *canonical) String() string {
	list := make([]signer.Field, 0, len(c.names)+8)
	for _, name := range c.names {
		for _, value := range c.fields[name] {
			list = append(list, signer.Field{Name: name, Value: fieldValue(value)})
		}
	}
	b := make([]byte, 0, 512)
	for _, s := range []string{c.method, c.path, c.query} {
		b = append(append(b, s...), '\n')
	}
	b = appendHeader(b, list)
	b = append(b, '\n')
	b = appendNames(b, list)
	b = append(b, '\n')
	return text(append(b, c.payload...))
}

// appendHeader appends the canonical form of fields that are sorted by name, with trimmed
// values; those of one name are in the order in which they are sent.
func appendHeader(b []byte, list []signer.Field) []byte {
	for i, f := range list {
		if i > 0 && f.Name == list[i-1].Name {
			b[len(b)-1] = ',' // instead of the line's end
		} else {
			b = append(append(b, f.Name...), ':')
		}
		b = append(append(b, f.Value...), '\n')
	}
	return b
}

// appendNames appends the names of sorted fields, each once.
func appendNames(b []byte, list []signer.Field) []byte {
	for i, f := range list {
		if i > 0 && f.Name == list[i-1].Name {
			continue
		}
		if i > 0 {
			b = append(b, ';')
		}
		b = append(b, f.Name...)
	}
	return b
}

func stringToSign(date string, s scope, canonicalRequest string) string {
	sum := sha256.Sum256([]byte(canonicalRequest))
	return toSignHead(date, s) + hex.EncodeToString(sum[:])
}

// toSignHead is the string to sign up to the hash of the canonical request.
func toSignHead(date string, s scope) string {
	return algorithm + "\n" + date + "\n" + s.String() + "\n"
}

// isHash tells whether s is a lower-case hex SHA-256.
func isHash(s string) bool {
	if s == signer.EmptySHA256 { // what most requests have
		return true
	}
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
