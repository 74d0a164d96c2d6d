package sigv4

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// Caps on what a verifier reads before it knows who sent it.
const (
	maxAuthorization = 8 << 10 // bytes
	maxSignedFields  = 200
	maxAccessKeyID   = 128 // bytes, as in AWS
)

// claim is what a request says about its own signature.
type claim struct {
	accessKeyID string
	scope       scope
	signed      []string // field names, lower-case, sorted
	signature   []byte
	date        string // X-Amz-Date, as sent
	time        time.Time
	presigned   bool
	expires     time.Duration // presigned only
}

// parseAuthorization reads the Authorization field. Each of its three parts must be there
// once; nothing else may be.
func parseAuthorization(s string) (c claim, err error) {
	if len(s) > maxAuthorization {
		return c, refuse(ErrMalformed, "Authorization is longer than %d bytes", maxAuthorization)
	}
	rest, ok := strings.CutPrefix(s, algorithm+" ")
	if !ok {
		return c, refuse(ErrNoSignature, "Authorization is not %s", algorithm)
	}
	seen := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		name, value, ok := strings.Cut(strings.Trim(part, " "), "=")
		if _, twice := seen[name]; !ok || twice || value == "" {
			return c, refuse(ErrMalformed, "Authorization: want Credential=…, SignedHeaders=…, Signature=…, each once")
		}
		seen[name] = value
	}
	if len(seen) != 3 || seen["Credential"] == "" || seen["SignedHeaders"] == "" || seen["Signature"] == "" {
		return c, refuse(ErrMalformed, "Authorization: want Credential=…, SignedHeaders=…, Signature=…, each once")
	}
	return newClaim(seen["Credential"], seen["SignedHeaders"], seen["Signature"])
}

func newClaim(credential, signed, signature string) (c claim, err error) {
	parts := strings.Split(credential, "/")
	if len(parts) != 5 || parts[4] != terminator || parts[0] == "" || len(parts[0]) > maxAccessKeyID {
		return c, refuse(ErrMalformed, "Credential: want ACCESS-KEY-ID/DATE/REGION/SERVICE/%s", terminator)
	}
	for i := 0; i < len(parts[0]); i++ { // it will be in logs
		if b := parts[0][i]; b <= ' ' || b >= 0x7f {
			return c, refuse(ErrMalformed, "Credential: the access key id has a byte that is not printable ASCII")
		}
	}
	c.accessKeyID, c.scope = parts[0], scope{parts[1], parts[2], parts[3]}

	c.signed = strings.Split(signed, ";")
	if len(c.signed) > maxSignedFields {
		return c, refuse(ErrMalformed, "SignedHeaders names more than %d fields", maxSignedFields)
	}
	for i, name := range c.signed {
		if !validName(name) || strings.ToLower(name) != name || i > 0 && c.signed[i-1] >= name {
			return c, refuse(ErrMalformed, "SignedHeaders: want lower-case names, sorted, each once")
		}
	}
	c.signature, err = hex.DecodeString(signature)
	if err != nil || !isHash(signature) {
		return c, refuse(ErrMalformed, "Signature: want 64 lower-case hex digits")
	}
	return c, nil
}

func (c *claim) covers(name string) bool {
	_, found := slices.BinarySearch(c.signed, name)
	return found
}

// setDate takes the signing time, which must be of the scope's day.
func (c *claim) setDate(date string) error {
	t, err := time.Parse(timeFormat, date)
	if err != nil || t.Format(timeFormat) != date {
		return refuse(ErrMalformed, "%s: want the form %s", fieldDate, timeFormat)
	}
	if t.Format(dateFormat) != c.scope.date {
		return refuse(ErrScope, "the scope's day is not that of %s", fieldDate)
	}
	c.date, c.time = date, t
	return nil
}
