package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// dayKey is the signing key of one set of credentials for one day (UTC). It is never
// changed, only exchanged. It shows no secret when it is printed.
type dayKey struct {
	id, secret, token, day string

	key      []byte // of DeriveKey
	head     string // of Authorization, up to the names of the signed fields
	trimmed  string // the token, as it is signed
	sendable bool   // id and token hold nothing that a header field may not
}

func newDayKey(creds *aws.Credentials, day, region, service string) *dayKey {
	return &dayKey{
		id: creds.AccessKeyID, secret: creds.SecretAccessKey, token: creds.SessionToken, day: day,
		key: DeriveKey(creds.SecretAccessKey, day, region, service),
		head: algorithm + " Credential=" + creds.AccessKeyID + "/" + scope{day, region, service}.String() +
			", SignedHeaders=",
		trimmed:  fieldValue(creds.SessionToken),
		sendable: printableASCII(creds.AccessKeyID) && printableASCII(creds.SessionToken),
	}
}

// fits tells whether the key is that of these credentials and this day. The secret is
// compared, too: it may change under an id that stays. Strings that lie at one address, as
// those of a cache do, are not looked into.
func (k *dayKey) fits(creds *aws.Credentials, day string) bool {
	return k != nil && k.id == creds.AccessKeyID && k.secret == creds.SecretAccessKey && k.token == creds.SessionToken && k.day == day
}

// hmac returns an HMAC of the key, which has its inner and outer states at hand.
func (k *dayKey) hmac() hash.Hash {
	h := hmac.New(sha256.New, k.key)
	h.Reset() // this is when it stores them
	return h
}

// Format writes whose key it is.
func (k *dayKey) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "sigv4 key of "+k.id+" for "+k.day)
}

func printableASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// moment is a second, as signatures write it. It is never changed, only exchanged.
type moment struct {
	unix      int64
	day, date string
	head      string // of the string to sign, up to the hash
}

func newMoment(t time.Time, region, service string) *moment {
	t = t.UTC()
	m := &moment{unix: t.Unix(), day: t.Format(dateFormat), date: t.Format(timeFormat)}
	m.head = toSignHead(m.date, scope{m.day, region, service})
	return m
}
