package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/execproxy/execproxy/transport/h2"
)

// What went wrong, for errors.Is. Each error of this package wraps one of them
// in an *UpstreamError, except the error of the request's own context, which is
// returned as it is.
var (
	// ErrUnreachable: no connection (refused, no route, unknown name).
	ErrUnreachable = errors.New("server cannot be reached")
	// ErrTimeout: no connection within DialTimeout.
	ErrTimeout = errors.New("server did not answer in time")
	// ErrUntrusted: no root vouches for the server's certificate, or it has expired.
	ErrUntrusted = errors.New("server certificate is not trusted")
	// ErrServerName: the server's certificate is for other names.
	ErrServerName = errors.New("server certificate is for another name")
	// ErrCertificateRefused: the server sent a TLS alert about the client certificate.
	ErrCertificateRefused = errors.New("server refused the client certificate")
	// ErrCertificateExpired: the client certificate has expired; nothing was dialled.
	ErrCertificateExpired = errors.New("client certificate has expired")
	// ErrKey: the private key could not sign the handshake.
	ErrKey = errors.New("private key could not sign")
	// ErrHandshake: the TLS or HTTP/2 handshake failed for another reason.
	ErrHandshake = errors.New("handshake with the server failed")
	// ErrProxy: the proxy between here and the server failed or refused.
	ErrProxy = errors.New("proxy failed")
	// ErrConnectionLost: the connection ended under a request, which the server
	// may or may not have processed.
	ErrConnectionLost = errors.New("connection to the server was lost")
	// ErrStreamReset: the server reset one stream (RFC 9113 section 6.4).
	ErrStreamReset = errors.New("server reset the stream")
	// ErrNotProcessed: the server said that it did not process the request
	// (GOAWAY or REFUSED_STREAM) and repeating it here was not possible.
	ErrNotProcessed = errors.New("server did not process the request")
	// ErrBusy: every connection the pool may have is full.
	ErrBusy = errors.New("too many streams")
	// ErrClosed: the Transport was closed.
	ErrClosed = errors.New("transport is closed")
)

// UpstreamError says what is wrong with the way to the server and what mends
// it, on one line and without credentials.
type UpstreamError struct {
	Kind   error  // one of the sentinels of this package
	Server string // host:port
	Proxy  string // scheme://host:port of the proxy in between, or empty
	Hint   string // what mends it
	Err    error  // the cause, may be nil

	unsent bool
	held   bool // said again, without another try
}

func (e *UpstreamError) Error() string {
	var b strings.Builder
	b.WriteString(e.Server)
	if e.Proxy != "" {
		b.WriteString(" through proxy " + e.Proxy)
	}
	b.WriteString(": " + e.Kind.Error())
	if e.Err != nil {
		b.WriteString(": " + oneLine(e.Err.Error()))
	}
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Unwrap makes the kind and the cause visible to errors.Is and errors.As.
func (e *UpstreamError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Timeout implements net.Error.
func (e *UpstreamError) Timeout() bool {
	var t interface{ Timeout() bool }
	return e.Kind == ErrTimeout || e.Err != nil && errors.As(e.Err, &t) && t.Timeout()
}

// NotProcessed reports a request that the server declined, as if it had never
// come: it may be signed and sent again at once. A server that cannot be reached
// is another matter.
func (e *UpstreamError) NotProcessed() bool { return e.unsent && e.Kind == ErrNotProcessed }

// Public is the text of the error, which holds nothing secret and is made to be
// shown to the client.
func (e *UpstreamError) Public() string { return e.Error() }

// StatusCode is the HTTP status that tells a client what happened: 503 where the
// request was surely not processed and may be sent again, 504 where nobody
// answered in time, 502 otherwise.
func (e *UpstreamError) StatusCode() int {
	switch {
	case e.Kind == ErrKey:
		return http.StatusServiceUnavailable // also where the key's device took too long
	case e.Timeout():
		return http.StatusGatewayTimeout
	case e.Kind == ErrUnreachable, e.Kind == ErrNotProcessed, e.Kind == ErrBusy, e.Kind == ErrClosed:
		return http.StatusServiceUnavailable
	}
	return http.StatusBadGateway
}

// Temporary implements net.Error. It is false: ask Unsent instead.
func (e *UpstreamError) Temporary() bool { return false }

// Unsent reports whether the request that failed with err surely never reached
// the server's handler, so that sending it again cannot do anything twice. It
// is false wherever there is doubt.
func Unsent(err error) bool {
	var u *UpstreamError
	return errors.As(err, &u) && u.unsent
}

// oneLine keeps a peer from writing lines of its own into our messages.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	const most = 400
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// dialError classifies a failure before the first byte of a request. signing is
// the error of the private key, which crypto/tls keeps the text of only.
func dialError(server, proxy string, timeout time.Duration, err, signing error) error {
	var u *UpstreamError
	if errors.As(err, &u) {
		return u
	}
	e := &UpstreamError{Server: server, Proxy: proxy, Err: err, unsent: true}
	var (
		invalid x509.CertificateInvalidError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		roots   x509.SystemRootsError
		record  tls.RecordHeaderError
		dns     *net.DNSError
		op      *net.OpError
		timed   net.Error
	)
	switch {
	case signing != nil:
		e.Kind, e.Err = ErrKey, signing
		if !hasCure(signing) {
			e.Hint = "check the key's device or file"
		}
	case errors.As(err, &name):
		e.Kind, e.Hint = ErrServerName, "check the address, or set tls-server-name to a name of the certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		e.Kind, e.Hint = ErrUntrusted, "renew the server's certificate, or mend the clock here"
	case errors.As(err, &invalid), errors.As(err, &unknown), errors.As(err, &roots):
		e.Kind, e.Hint = ErrUntrusted, "name the CA of this server (certificate-authority, in a kubeconfig certificate-authority-data)"
	case refusesCertificate(err):
		e.Kind, e.Hint = ErrCertificateRefused, "check that the cluster trusts its issuer and that it is neither expired nor revoked"
	case errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/":
		e.Kind, e.Hint = ErrHandshake, "the server speaks plain HTTP on this port; name its https port"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timed) && timed.Timeout() && !errors.As(err, &dns):
		e.Kind, e.Hint = ErrTimeout, fmt.Sprintf("waited %v; check the address, the route and firewalls", timeout)
	case errors.As(err, &dns):
		e.Kind, e.Hint = ErrUnreachable, "check the server's name and the resolver"
	case errors.As(err, &op) && op.Op == "dial":
		e.Kind, e.Hint = ErrUnreachable, "check the address and that the server runs"
	default:
		e.Kind, e.Hint = ErrHandshake, "check that this port speaks TLS and that the server is healthy"
	}
	return e
}

// hasCure reports whether the text of err says already what mends it: the homes of keys know
// better than we do.
func hasCure(err error) bool {
	var c interface{ HasCure() bool }
	return errors.As(err, &c) && c.HasCure()
}

// certificateAlerts are the TLS alerts with which a server turns a client
// certificate down (RFC 8446 section 6.2).
var certificateAlerts = [...]tls.AlertError{
	42,  // bad_certificate
	43,  // unsupported_certificate
	44,  // certificate_revoked
	45,  // certificate_expired
	46,  // certificate_unknown
	48,  // unknown_ca
	49,  // access_denied
	116, // certificate_required
}

// refusesCertificate compares texts: the type that crypto/tls gives to a
// received alert is not exported, the type that renders the same text is.
func refusesCertificate(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" || op.Err == nil {
		return false
	}
	for _, a := range certificateAlerts {
		if op.Err.Error() == a.Error() {
			return true
		}
	}
	return false
}

// isConnError reports the end of a connection, as package h2, net/http, TLS and the system
// tell it.
func isConnError(err error) bool {
	var (
		op     *net.OpError
		system *os.SyscallError
		conn   *h2.ConnError
	)
	text := err.Error()
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, h2.ErrNoAnswer) || errors.Is(err, h2.ErrClosed) || errors.Is(err, h2.ErrIdle) ||
		errors.As(err, &op) || errors.As(err, &system) || errors.As(err, &conn) ||
		strings.HasPrefix(text, "net/http: HTTP/1.x transport connection broken") ||
		strings.HasPrefix(text, "http: server closed")
}
