package proxy

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// What happens to a field of the client's request. The names are matched
// without case, and with '_' as '-': some servers behind us map both to one
// variable.
type action uint8

const (
	pass  action = iota
	drop         // never forwarded
	lower        // forwarded, but hidden from net/http under a lower-case key
)

// requestPolicy is the one table of the request header. A name that ends in
// '*' stands for all that begin so. Everything else passes unchanged:
// Impersonate-*, Accept, Accept-Encoding, Audit-Id, Range, Origin, Sec-WebSocket-*…
var requestPolicy = []struct {
	name   string
	action action
}{
	// Hop by hop: RFC 9110 section 7.6.1. Also all that Connection names.
	{"connection", drop},
	{"keep-alive", drop},
	{"proxy-*", drop}, // Proxy-Authorization is for a proxy, and not for the server
	{"te", drop},      // "trailers" is set anew: see requestHeader
	{"trailer", drop}, // set anew from Request.Trailer
	{"transfer-encoding", drop},
	{"upgrade", drop}, // set anew for the protocols of upgrade.go
	{"http2-settings", drop},

	// Framing and routing are ours to say.
	{"host", drop},
	{"content-length", drop}, // set anew from Request.ContentLength
	{"expect", drop},         // answered by our server when the body is read

	// Who the client is: only our certificate or signature tells. Authorization
	// is kept where it is passed through; see admit.go.
	{"authorization", drop},
	{"cookie", drop}, // an ambient credential that the API server ignores
	{"x-remote-*", drop},

	// What signatures are made of.
	{"x-amz-*", drop},
	{"signature", drop},
	{"signature-*", drop},
	{"x-k8s-audience", drop},

	// Where the request comes from: we are its first hop.
	{"x-forwarded-*", drop},
	{"x-forwarded", drop},
	{"forwarded", drop},
	{"forwarded-*", drop},
	{"via", drop},
	{"x-real-ip", drop},
	{"x-client-ip", drop},
	{"x-cluster-client-ip", drop},
	{"true-client-ip", drop},
	{"x-original-*", drop}, // paths, hosts and methods that some gateways prefer to the real ones
	{"x-rewrite-url", drop},
	{"x-http-method-override", drop},

	// net/http's HTTP/1.1 transport takes these as a leave to send a POST twice.
	{"idempotency-key", lower},
	{"x-idempotency-key", lower},

	{strings.ToLower(ErrorHeader), drop},
}

// responsePolicy lists what the client does not get from the server's header.
var responsePolicy = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authentication-Info",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Alt-Svc",   // would lead the client around the proxy
	ErrorHeader, // says that the answer is ours
}

// rules is requestPolicy, made for look-ups.
type rules struct {
	exact  map[string]action
	prefix []string          // all of them drop
	common map[string]action // what clients send all the time, in lower case
}

// common fields, for which the whole table need not be gone through.
var common = [...]string{
	"accept", "accept-encoding", "accept-language", "audit-id", "authorization", "cache-control", "content-type", "cookie", "host",
	"idempotency-key", "if-match", "if-modified-since", "if-none-match", "impersonate-group", "impersonate-uid", "impersonate-user",
	"kubectl-command", "kubectl-session", "origin", "pragma", "priority", "range", "referer", "traceparent", "user-agent",
}

func newRules(o *Options) *rules {
	r := &rules{exact: make(map[string]action, len(requestPolicy))}
	for _, p := range requestPolicy {
		if prefix, ok := strings.CutSuffix(p.name, "*"); ok {
			r.prefix = append(r.prefix, prefix)
		} else {
			r.exact[p.name] = p.action
		}
	}
	if o.DisableCompression {
		r.exact["accept-encoding"] = drop
	}
	r.common = make(map[string]action, len(common))
	for _, name := range common {
		r.common[name] = r.of(name)
	}
	return r
}

// ofLower is of for a name in lower case.
func (r *rules) ofLower(name string) action {
	if a, ok := r.common[name]; ok {
		return a
	}
	return r.of(name)
}

// of looks a field name up without allocating.
func (r *rules) of(name string) action {
	var buf [64]byte
	n := fold(buf[:0], name)
	if a, ok := r.exact[string(n)]; ok {
		return a
	}
	for _, p := range r.prefix {
		if len(n) >= len(p) && string(n[:len(p)]) == p {
			return drop
		}
	}
	return pass
}

func fold(buf []byte, name string) []byte {
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c == '_':
			c = '-'
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		}
		buf = append(buf, c)
	}
	return buf
}

// requestHeader makes the outgoing header of the client's. Authorization is
// kept only for keepAuthorization. It shares the values with in.
func (r *rules) requestHeader(in http.Header, keepAuthorization bool) (http.Header, error) {
	named, err := connectionNames(in)
	if err != nil {
		return nil, err
	}
	out := make(http.Header, len(in)+4)
	for name, values := range in {
		if len(named) > 0 && named[textproto.CanonicalMIMEHeaderKey(name)] {
			continue
		}
		switch r.of(name) {
		case drop:
			if keepAuthorization && name == "Authorization" {
				out[name] = values
			}
		case lower:
			out[strings.ToLower(name)] = values
		default:
			out[name] = values
		}
	}
	// net/http writes one User-Agent, and none that is empty.
	if ua, ok := out["User-Agent"]; ok {
		if len(ua) == 0 || ua[0] == "" {
			delete(out, "User-Agent")
		} else if len(ua) > 1 {
			out["User-Agent"] = ua[:1:1]
		}
	}
	// TE is hop by hop, but a client that takes trailers gets them: we pass them on.
	if hasToken(in["Te"], "trailers") {
		out["Te"] = []string{"trailers"}
	}
	return out, nil
}

// connectionNames gives the canonical names that Connection declares hop by
// hop. Impersonation must not be one of them: dropping it would run the
// request as the proxy's own identity.
func connectionNames(in http.Header) (map[string]bool, error) {
	var named map[string]bool
	for _, v := range in["Connection"] {
		for token := range strings.SplitSeq(v, ",") {
			token = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(token))
			switch token {
			case "", "Close", "Keep-Alive", "Upgrade", "Te":
				continue
			}
			if strings.HasPrefix(token, "Impersonate-") && in[token] != nil {
				return nil, &refusal{code: http.StatusBadRequest, reason: ReasonBadRequest, hangUp: true,
					message: "execproxy: the Connection header names " + token + ", which must reach the server; remove it from Connection"}
			}
			if named == nil {
				named = make(map[string]bool)
			}
			named[token] = true
		}
	}
	return named, nil
}

// requestTrailer gives the trailer fields that the client announced and that
// may pass, without values.
func (r *rules) requestTrailer(in http.Header) http.Header {
	var out http.Header
	for name := range in {
		if r.of(name) != pass {
			continue
		}
		if out == nil {
			out = make(http.Header, len(in))
		}
		out[name] = nil
	}
	return out
}

// responseHeader copies the server's header to the client's.
func responseHeader(dst, src http.Header) {
	for name, values := range src {
		dst[name] = values
	}
	for _, v := range src["Connection"] {
		for token := range strings.SplitSeq(v, ",") {
			if token = textproto.TrimString(token); token != "" {
				dst.Del(token)
			}
		}
	}
	for _, name := range responsePolicy {
		delete(dst, name)
	}
	if lengths := dst["Content-Length"]; len(lengths) > 1 || len(lengths) == 1 && !isLength(lengths[0]) {
		delete(dst, "Content-Length") // RFC 9110 section 8.6; what it means is told by the end
	}
	// Our server would add what the API server did not say.
	for _, name := range [...]string{"Date", "Content-Type"} {
		if _, ok := dst[name]; !ok {
			dst[name] = nil
		}
	}
}

// isLength reports whether v is a Content-Length.
func isLength(v string) bool {
	_, err := strconv.ParseUint(v, 10, 63)
	return err == nil
}

// hasToken reports whether a comma-separated list field has the token in it,
// parameters aside.
func hasToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			t, _, _ = strings.Cut(t, ";")
			if strings.EqualFold(textproto.TrimString(t), token) {
				return true
			}
		}
	}
	return false
}

// mergeSigned puts the signer's fields over the client's.
func mergeSigned(out, signed http.Header) error {
	for name, values := range signed {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if notASigners(strings.ToLower(name)) {
			return &SignedFieldError{Field: name}
		}
		out[name] = values
	}
	return nil
}

// notASigners reports whether a field, in lower case, belongs to the connection or to the
// framing.
func notASigners(name string) bool {
	switch name {
	case "host", "content-length", "transfer-encoding", "connection", "upgrade", "trailer", "te", "keep-alive":
		return true
	}
	return false
}

// SignedFieldError tells that a signer returned a field that a signer must not
// set: it belongs to the connection or to the framing.
type SignedFieldError struct{ Field string }

func (e *SignedFieldError) Error() string {
	return "signer returned the field " + e.Field + ", which is not a signer's to set"
}
