package signer

import (
	"net/http"
	"strings"
)

// FromReceived returns the view of a request that a server received, for a verifier.
// It takes the target from RequestURI, the bytes of the wire, and not from r.URL, which
// net/http has decoded. The view shares r.Header. contentSHA256 is the hash of the body
// that was received, see [Request].
//
// It returns a *[RequestError] for a request that was not received by a server, and for a
// target that is not in origin form (CONNECT, OPTIONS *, a proxy request).
func FromReceived(r *http.Request, contentSHA256 string) (*Request, error) {
	if !strings.HasPrefix(r.RequestURI, "/") {
		return nil, &RequestError{Field: "target", Problem: "not in origin form: must begin with a slash"}
	}
	path, query, _ := strings.Cut(r.RequestURI, "?")
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return &Request{
		Method:        r.Method,
		Scheme:        scheme,
		Authority:     r.Host,
		Path:          path,
		RawQuery:      query,
		Header:        r.Header,
		ContentSHA256: contentSHA256,
	}, nil
}
