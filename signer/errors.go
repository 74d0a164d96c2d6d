package signer

import "net/http"

// RequestError says that a request cannot be signed as it is, or that its signature could
// not mean one thing only. The cure lies with the client that made the request.
type RequestError struct {
	Field   string // what is wrong: "path", "query", "authority", or a header field's name
	Problem string // why, and what to send instead; never a value of the request
}

func (e *RequestError) Error() string {
	return "sign request: " + e.Field + ": " + e.Problem
}

// StatusCode is the HTTP status for the client: 400.
func (e *RequestError) StatusCode() int { return http.StatusBadRequest }
