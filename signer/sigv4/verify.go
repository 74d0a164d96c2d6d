package sigv4

import (
	"crypto/hmac"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// DefaultWindow is how far a signing time may be from the verifier's clock.
const DefaultWindow = 5 * time.Minute

// Identity is who signed.
type Identity struct {
	AccessKeyID string
	User        string
	UID         string
	Groups      []string
	Extra       map[string][]string
}

// Lookup finds the signing key (see [DeriveKey]) of an access key id for a day (20060102), a
// region and a service, and who it belongs to. It returns an error that wraps
// [ErrUnknownKey] where it knows none. It is called before the signature was checked, with
// what the request claims; region and service are the Verifier's.
type Lookup func(accessKeyID, date, region, service string) (key []byte, id Identity, err error)

// Verifier checks signatures. Region, Service and Lookup are required. It never needs the
// secret. The zero value of everything else is the strict choice. Verify may be called
// concurrently; the fields must not change then.
type Verifier struct {
	Region, Service string
	Lookup          Lookup

	Path         PathMode // as the signers have it
	SingleEncode bool     // as the signers have it

	Window time.Duration    // 0: DefaultWindow
	Clock  func() time.Time // nil: time.Now

	UnsignedPayload      bool // accept requests whose body is not covered
	UnsignedSessionToken bool // accept X-Amz-Security-Token unsigned
	Presigned            bool // accept signatures in the query, too

	RequireTarget bool     // refuse requests without TargetHeader
	RequireSigned []string // further fields that must be signed where present

	// CheckSessionToken, if set, is asked about the session token ("" for none) of a request
	// whose signature is right.
	CheckSessionToken func(id Identity, token string) error

	Replay *ReplayCache // nil: repeats are the caller's affair
}

// Verify returns who signed the request. r is the request as it was received, and
// r.ContentSHA256 the hash of the body that was received with it; see
// [signer.FromReceived]. Where the body was not hashed, r.ContentSHA256 is
// [signer.UnsignedPayload], and only requests signed so are accepted.
//
// Besides a right signature it wants: a time within Window; the scope's own region, service
// and day; Host, X-Amz-Date, Content-Type, Content-Encoding, all Impersonate-*, X-Amz-* and
// X-Execproxy-* fields of the request to be signed; none of those that decide something to
// be there twice. What it refuses, it refuses with a *[VerifyError], a *[SkewError] or, for
// what has no canonical form, a *[signer.RequestError].
//
// Fields that were not signed may have been put there by anybody: do not rely on them.
func (v *Verifier) Verify(r *signer.Request) (Identity, error) {
	if v.Lookup == nil || v.Region == "" || v.Service == "" {
		return Identity{}, errors.New("verify signature: verifier has no lookup, region or service")
	}
	fields, err := lowered(r.Header)
	if err != nil {
		return Identity{}, err
	}
	query := []pair(nil)
	if err := requireQuery(r.RawQuery); err != nil {
		return Identity{}, err
	}
	query = pairs(r.RawQuery)

	c, token, err := v.claim(fields, &query)
	if err != nil {
		return Identity{}, err
	}
	if c.scope.region != v.Region || c.scope.service != v.Service {
		return Identity{}, refuse(ErrScope, "signed for %s/%s, want %s/%s",
			printable(c.scope.region), printable(c.scope.service), v.Region, v.Service)
	}
	if err := v.checkTime(&c); err != nil {
		return Identity{}, err
	}
	if err := v.checkFields(&c, fields, r); err != nil {
		return Identity{}, err
	}
	form, err := v.canonical(&c, fields, query, r)
	if err != nil {
		return Identity{}, err
	}
	key, id, err := v.Lookup(c.accessKeyID, c.scope.date, v.Region, v.Service)
	switch {
	case errors.Is(err, ErrUnknownKey):
		return Identity{}, refuse(ErrUnknownKey, "%s", c.accessKeyID)
	case err != nil:
		return Identity{}, err
	case len(key) == 0:
		return Identity{}, refuse(ErrUnknownKey, "%s", c.accessKeyID)
	}
	want := hmacSHA256(key, stringToSign(c.date, c.scope, form.String()))
	if !hmac.Equal(want, c.signature) {
		return Identity{}, refuse(ErrSignature, "another key, or the request was changed on its way")
	}
	id.AccessKeyID = c.accessKeyID
	if v.CheckSessionToken != nil {
		if err := v.CheckSessionToken(id, token); err != nil {
			return Identity{}, refuse(ErrToken, "%s", c.accessKeyID)
		}
	}
	if v.Replay != nil && !safe(r.Method) {
		until := c.time.Add(v.window())
		if c.presigned {
			until = c.time.Add(c.expires)
		}
		if err := v.Replay.add(c.accessKeyID+"/"+hex.EncodeToString(c.signature), until, v.now()); err != nil {
			return Identity{}, err
		}
	}
	return id, nil
}

// claim reads the signature's own fields, from the header or, where allowed, the query.
// Of a presigned query it leaves what was signed.
func (v *Verifier) claim(fields map[string][]string, query *[]pair) (c claim, token string, err error) {
	authorization := fields["authorization"]
	if signed, ok := presignedQuery(*query); ok && v.Presigned {
		if authorization != nil {
			return c, "", refuse(ErrAmbiguous, "signatures both in Authorization and in the query")
		}
		return v.presigned(signed, query)
	}
	switch len(authorization) {
	case 0:
		return c, "", refuse(ErrNoSignature, "no Authorization")
	case 1:
	default:
		return c, "", refuse(ErrAmbiguous, "Authorization is there more than once")
	}
	if c, err = parseAuthorization(authorization[0]); err != nil {
		return c, "", err
	}
	date := fields["x-amz-date"]
	if len(date) != 1 {
		return c, "", refuse(ErrMalformed, "%s: want it exactly once", fieldDate)
	}
	if err := c.setDate(date[0]); err != nil {
		return c, "", err
	}
	if tokens := fields["x-amz-security-token"]; len(tokens) > 0 {
		token = tokens[0]
	}
	return c, token, nil
}

func (v *Verifier) checkTime(c *claim) error {
	now := v.now()
	skew := c.time.Sub(now)
	switch {
	case c.presigned && skew <= v.window() && now.Before(c.time.Add(c.expires)):
		return nil
	case !c.presigned && skew.Abs() <= v.window():
		return nil
	}
	window := v.window()
	if c.presigned && skew < 0 {
		window = c.expires
	}
	return &SkewError{Signed: c.time, Now: now, Window: window}
}

// checkFields sees to it that what decides something is signed, and there once.
func (v *Verifier) checkFields(c *claim, fields map[string][]string, r *signer.Request) error {
	if !c.covers("host") {
		return refuse(ErrUnsigned, "Host")
	}
	if r.Authority == "" {
		return refuse(ErrAmbiguous, "the request has no Host")
	}
	for name, values := range fields {
		must := mustBeSigned(name) && (name != "x-amz-security-token" || !v.UnsignedSessionToken)
		if must && !c.covers(name) {
			return refuse(ErrUnsigned, "%s", fieldName(name))
		}
		if !must && !c.covers(name) && !single(name) {
			continue
		}
		if problem := checkField(name, values); problem != "" {
			return refuse(ErrAmbiguous, "%s %s", fieldName(name), problem)
		}
	}
	for _, name := range v.RequireSigned {
		name = strings.ToLower(name)
		if len(fields[name]) > 0 && !c.covers(name) {
			return refuse(ErrUnsigned, "%s", fieldName(name))
		}
	}
	target := fields[strings.ToLower(TargetHeader)]
	switch {
	case len(target) == 0 && v.RequireTarget:
		return refuse(ErrUnsigned, "%s: the signer must bind the request target", TargetHeader)
	case len(target) == 1 && subtle.ConstantTimeCompare([]byte(target[0]), []byte(targetHash(r))) == 0:
		return refuse(ErrSignature, "%s is not that of this path and query", TargetHeader)
	}
	return nil
}

// canonical brings the request into the form that was signed.
func (v *Verifier) canonical(c *claim, fields map[string][]string, query []pair, r *signer.Request) (*canonical, error) {
	path, err := canonicalPath(r.Path, v.Path, v.SingleEncode)
	if err != nil {
		return nil, err
	}
	payload, err := v.payload(fields["x-amz-content-sha256"], r.ContentSHA256)
	if err != nil {
		return nil, err
	}
	for _, name := range c.signed {
		if name != "host" && len(fields[name]) == 0 {
			return nil, refuse(ErrSignature, "%s was signed and is not on the request", fieldName(name))
		}
	}
	fields["host"] = []string{r.Authority} // ours: lowered made the map
	return &canonical{
		method:  r.Method,
		path:    path,
		query:   canonicalQuery(query),
		names:   c.signed,
		fields:  fields,
		payload: payload,
	}, nil
}

// payload is the body's line in the canonical request.
func (v *Verifier) payload(claimed []string, received string) (string, error) {
	if received != signer.UnsignedPayload && !isHash(received) {
		return "", refuse(ErrBody, "the body's SHA-256 was not computed")
	}
	if len(claimed) == 1 && claimed[0] == signer.UnsignedPayload {
		if !v.UnsignedPayload {
			return "", refuse(ErrBody, "%s is not accepted here", signer.UnsignedPayload)
		}
		return signer.UnsignedPayload, nil
	}
	if received == signer.UnsignedPayload {
		return "", refuse(ErrBody, "it is signed, and was not hashed")
	}
	if len(claimed) == 1 && subtle.ConstantTimeCompare([]byte(claimed[0]), []byte(received)) == 0 {
		return "", refuse(ErrBody, "%s is not that of the body", fieldSHA256)
	}
	return received, nil
}

func (v *Verifier) window() time.Duration {
	if v.Window > 0 {
		return v.Window
	}
	return DefaultWindow
}

func (v *Verifier) now() time.Time {
	if v.Clock != nil {
		return v.Clock().Round(0)
	}
	return time.Now().Round(0) // by the wall clock
}

// printable cuts what a stranger sent down to what a log line can take.
func printable(s string) string {
	if len(s) > 40 {
		s = s[:40]
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, s)
}
