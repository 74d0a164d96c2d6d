package signer

import (
	"context"
	"net/http"
	"time"
)

// Values of Request.ContentSHA256 that do not come from hashing a body.
const (
	// EmptySHA256 is the SHA-256 of no bytes, in hex: that of a request without a body,
	// and that of the handshake of an upgrade.
	EmptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

	// UnsignedPayload says that the body is deliberately not covered by a signature.
	UnsignedPayload = "UNSIGNED-PAYLOAD"
)

// Request is what will be sent, as a signer sees it. Signers treat it, the header map
// included, as read-only.
type Request struct {
	Method    string // as sent, upper case for the standard methods
	Scheme    string // "https"
	Authority string // what goes out as Host or :authority, byte for byte, with its port if it is sent with one
	Path      string // escaped, begins with a slash, byte for byte as sent
	RawQuery  string // what follows the question mark, byte for byte; "" also for none

	// Header holds what will be sent besides the fields a signer returns. Hop-by-hop
	// fields and those a signer replaces should be gone already; signers do not rely on it.
	Header http.Header

	// ContentSHA256 is the lower-case hex SHA-256 of the body, EmptySHA256 for none,
	// UnsignedPayload, or "" where nobody computed it.
	ContentSHA256 string
}

// Target returns the request target in origin form (RFC 9112, section 3.2.1), as sent.
func (r *Request) Target() string {
	if r.RawQuery == "" {
		return r.Path
	}
	return r.Path + "?" + r.RawQuery
}

// A RequestSigner authenticates requests. It never changes the request it is shown.
//
// SignRequest returns the fields to set on the request, in canonical form; each replaces
// all that the request has under this name. The map belongs to the caller. It returns a
// *[RequestError] where the request cannot be signed as it is. It is safe for concurrent
// use, returns soon after ctx ends, and never puts a secret into an error.
type RequestSigner interface {
	SignRequest(ctx context.Context, r *Request) (http.Header, error)
}

// A BodyHasher is a RequestSigner that may need Request.ContentSHA256. A signer without
// this method never looks at it.
type BodyHasher interface {
	HashesBody() bool
}

// A ResponseObserver is a RequestSigner that learns from answers. ObserveResponse gets the
// status and header of an answer and the local time at which its request was sent; it
// reports whether a new signature of the same request may be accepted where this one was
// refused. Sign again at most once.
type ResponseObserver interface {
	ObserveResponse(status int, header http.Header, sentAt time.Time) (again bool)
}
