package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// ErrorHeader is the response header that tells the proxy's own answers from
// the API server's. Its value is the reason of the Status.
const ErrorHeader = "Execproxy-Error"

// Reasons of the proxy's own answers: in the Status, in [ErrorHeader] and as
// keys of [Stats].Errors. Those that Kubernetes has are spelled as in
// metav1.StatusReason.
const (
	ReasonBadRequest         = "BadRequest"
	ReasonUnauthorized       = "Unauthorized"
	ReasonForbidden          = "Forbidden"
	ReasonMethodNotAllowed   = "MethodNotAllowed"
	ReasonRequestTimeout     = "RequestTimeout"
	ReasonTooLarge           = "RequestEntityTooLarge"
	ReasonTooManyRequests    = "TooManyRequests"
	ReasonNotImplemented     = "NotImplemented"
	ReasonBadGateway         = "BadGateway"         // the server broke off, or did not speak HTTP
	ReasonUntrusted          = "UpstreamUntrusted"  // the server's certificate was refused
	ReasonCertificateRefused = "CertificateRefused" // the server refused our certificate
	ReasonUnavailable        = "ServiceUnavailable" // nobody listens at the server's address, or it has none
	ReasonSigning            = "SigningFailed"
	ReasonShuttingDown       = "ShuttingDown"
	ReasonTimeout            = "Timeout" // the server did not answer in time
)

// status is metav1.Status, as much of it as is needed here.
type status struct {
	Kind       string         `json:"kind"`
	APIVersion string         `json:"apiVersion"`
	Metadata   struct{}       `json:"metadata"`
	Status     string         `json:"status"`
	Message    string         `json:"message"`
	Reason     string         `json:"reason"`
	Details    *statusDetails `json:"details,omitempty"`
	Code       int            `json:"code"`
}

type statusDetails struct {
	RetryAfterSeconds int `json:"retryAfterSeconds"`
}

// A refusal is an answer of the proxy itself.
type refusal struct {
	code       int
	reason     string
	message    string
	allow      string // Allow, for 405
	retryAfter int    // seconds; 0: no Retry-After
	hangUp     bool   // close the client's HTTP/1.1 connection
}

func (e *refusal) Error() string { return e.message }

// WriteStatus answers r with a metav1.Status that says Failure, and with the
// header [ErrorHeader]. HEAD gets no body. The message is shown to the user by
// kubectl: it should name the thing, what is wrong and the cure.
func WriteStatus(w http.ResponseWriter, r *http.Request, code int, reason, message string) {
	(&refusal{code: code, reason: reason, message: message}).write(w, r)
}

// encode is the answer: fields in lower case, and the body.
func (e *refusal) encode() (fields [][2]string, body []byte) {
	s := status{
		Kind: "Status", APIVersion: "v1", Status: "Failure",
		Message: e.message, Reason: e.reason, Code: e.code,
	}
	if e.retryAfter > 0 {
		s.Details = &statusDetails{RetryAfterSeconds: e.retryAfter}
		fields = append(fields, [2]string{"retry-after", strconv.Itoa(e.retryAfter)})
	}
	if e.allow != "" {
		fields = append(fields, [2]string{"allow", e.allow})
	}
	body, err := json.Marshal(&s)
	if err != nil { // strings and integers always encode
		body = []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`)
	}
	body = append(body, '\n')
	return append(fields, [][2]string{
		{strings.ToLower(ErrorHeader), e.reason}, {"content-type", "application/json"}, {"cache-control", "no-cache, private"},
		{"x-content-type-options", "nosniff"}, {"content-length", strconv.Itoa(len(body))},
	}...), body
}

func (e *refusal) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	fields, body := e.encode()
	for _, f := range fields {
		h.Set(f[0], f[1])
	}
	if e.hangUp && r.ProtoMajor == 1 {
		h.Set("Connection", "close")
	}
	w.WriteHeader(e.code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}
