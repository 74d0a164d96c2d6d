package sigv4

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// What a [VerifyError] may be, for errors.Is.
var (
	ErrNoSignature = errors.New("no signature")              // the request carries none
	ErrMalformed   = errors.New("malformed signature")       // the signature's own fields cannot be read
	ErrScope       = errors.New("wrong scope")               // signed for another region, service or day
	ErrUnknownKey  = errors.New("unknown access key")        // for a Lookup to return
	ErrUnsigned    = errors.New("not covered by signature")  // a field that must be signed is not
	ErrAmbiguous   = errors.New("ambiguous request")         // what was signed could mean two things
	ErrBody        = errors.New("body differs")              // the body is not the signed one, or not signed
	ErrSignature   = errors.New("signature does not match")  // wrong key, or the request was changed
	ErrReplayed    = errors.New("request was replayed")      // see ReplayCache
	ErrReplayFull  = errors.New("too many recent requests")  // see ReplayCache
	ErrToken       = errors.New("session token was refused") // by Verifier.CheckSessionToken
)

// ErrExpired says that the credentials which the provider gave have expired.
var ErrExpired = errors.New("credentials have expired")

// VerifyError says why a request was refused. Reason is one of the Err values above.
type VerifyError struct {
	Reason error
	Detail string // names the field; never a secret
}

func (e *VerifyError) Error() string {
	if e.Detail == "" {
		return "verify signature: " + e.Reason.Error()
	}
	return "verify signature: " + e.Reason.Error() + ": " + e.Detail
}

func (e *VerifyError) Unwrap() error { return e.Reason }

// StatusCode is the HTTP status for the client.
func (e *VerifyError) StatusCode() int {
	if errors.Is(e.Reason, ErrReplayFull) {
		return http.StatusTooManyRequests
	}
	return http.StatusUnauthorized
}

func refuse(reason error, format string, args ...any) error {
	return &VerifyError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// SkewError says that a request was signed too long ago or too far in the future.
type SkewError struct {
	Signed time.Time     // when the signer says it signed
	Now    time.Time     // the verifier's time
	Window time.Duration // how far they may be apart
}

// Skew is how far the signer's time is ahead of the verifier's.
func (e *SkewError) Skew() time.Duration { return e.Signed.Sub(e.Now) }

func (e *SkewError) Error() string {
	skew, side := e.Skew(), "ahead of"
	if skew < 0 {
		skew, side = -skew, "behind"
	}
	return fmt.Sprintf("verify signature: clock skew: signed at %s, %s %s this server's %s, allowed are %s: set the clock of the signing machine, or send the request sooner after signing it",
		e.Signed.UTC().Format(time.RFC3339), skew.Round(time.Second), side, e.Now.UTC().Format(time.RFC3339), e.Window)
}

// StatusCode is the HTTP status for the client: 401.
func (e *SkewError) StatusCode() int { return http.StatusUnauthorized }

// CredentialsError says that there are no usable AWS credentials.
type CredentialsError struct {
	Tried []string // where they were looked for, in order
	Err   error
	Cure  string // what the user can do
}

func (e *CredentialsError) Error() string {
	var b strings.Builder
	b.WriteString("get aws credentials: ")
	b.WriteString(oneLine(e.Err.Error()))
	if len(e.Tried) > 0 {
		b.WriteString(" (tried " + strings.Join(e.Tried, ", ") + ")")
	}
	if e.Cure != "" {
		b.WriteString(": " + e.Cure)
	}
	return b.String()
}

func (e *CredentialsError) Unwrap() error { return e.Err }

// StatusCode is the HTTP status for the client: 503, as it may pass.
func (e *CredentialsError) StatusCode() int { return http.StatusServiceUnavailable }

// oneLine folds an error text that spans lines, as some of the SDK's do.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
