package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
)

// explained is an error that knows what to tell the client. Either method may
// be missing.
type (
	speaking interface{ Public() string }
	coded    interface{ StatusCode() int }
)

// upstreamFault turns an error of the way out into an answer that names the
// server, what is wrong and the cure. What the way out says itself is better
// than what can be told from the cause.
func (p *Proxy) upstreamFault(err error) *refusal {
	no := p.causeFault(err)
	var (
		text speaking
		code coded
	)
	if errors.As(err, &text) {
		no.message = "execproxy: " + redact(text.Public())
	}
	if no.reason == ReasonBadGateway && errors.As(err, &code) {
		switch code.StatusCode() {
		case http.StatusServiceUnavailable:
			no.code, no.reason, no.retryAfter = http.StatusServiceUnavailable, ReasonUnavailable, 1
		case http.StatusGatewayTimeout:
			no.code, no.reason = http.StatusGatewayTimeout, ReasonTimeout
		}
	}
	return no
}

// causeFault tells what is wrong from the errors of the standard library.
func (p *Proxy) causeFault(err error) *refusal {
	var (
		dns     *net.DNSError
		record  tls.RecordHeaderError
		alert   tls.AlertError
		netErr  net.Error
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		verify  *tls.CertificateVerificationError
	)
	gateway := func(reason, what, cure string) *refusal {
		return &refusal{code: http.StatusBadGateway, reason: reason, message: "execproxy: " + p.server + " " + what + ": " + cure}
	}
	away := func(what, cure string) *refusal {
		return &refusal{code: http.StatusServiceUnavailable, reason: ReasonUnavailable, retryAfter: 1,
			message: "execproxy: " + p.server + " " + what + ": " + cure}
	}
	switch {
	case errors.Is(err, errUnsent):
		return away("did not take the request, which was not processed", "send it again")
	case errors.As(err, &unknown):
		return gateway(ReasonUntrusted, "shows a certificate of an unknown authority", "check --certificate-authority")
	case errors.As(err, &name):
		return gateway(ReasonUntrusted, "shows a certificate for another name", "check --server and --tls-server-name")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return gateway(ReasonUntrusted, "shows a certificate that has expired or is not valid yet", "renew it, or set this machine's clock")
	case errors.As(err, &invalid), errors.As(err, &verify):
		return gateway(ReasonUntrusted, "shows a certificate that is not valid", "check --certificate-authority and the server's certificate")
	case errors.As(err, &record):
		return gateway(ReasonBadGateway, "does not speak TLS", "check --server, its port and --proxy-url")
	case errors.As(err, &alert), strings.Contains(err.Error(), "remote error: tls: "):
		return gateway(ReasonCertificateRefused, "refused the TLS connection ("+alertText(err)+")", "check --cert and --key, and that the server trusts their issuer")
	case errors.As(err, &dns):
		return away("cannot be reached, its name cannot be resolved", "check --server and this machine's DNS")
	case errors.Is(err, syscall.ECONNREFUSED):
		return away("cannot be reached, connection refused", "check that the server runs, --server and --proxy-url")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.ENETDOWN):
		return away("cannot be reached, no route to it", "check the network and the VPN")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return away("cannot be reached, no file descriptor is free", "raise the limit (ulimit -n) or close clients")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &netErr) && netErr.Timeout():
		return &refusal{code: http.StatusGatewayTimeout, reason: ReasonTimeout,
			message: "execproxy: " + p.server + " did not answer in time: check the network, --server and --proxy-url"}
	}
	return gateway(ReasonBadGateway, "broke off before it answered; the request may have been processed", "look before sending it again; details are in execproxy's log")
}

// alertText is the name of a TLS alert: one of a fixed list of crypto/tls.
func alertText(err error) string {
	_, text, ok := strings.Cut(err.Error(), "tls: ")
	if !ok {
		return "TLS alert"
	}
	text, _, _ = strings.Cut(text, "\n")
	return redact(text)
}

// signFault turns a signer's error into an answer.
func (p *Proxy) signFault(err error) *refusal {
	text := redact(err.Error())
	var (
		public speaking
		code   coded
	)
	if errors.As(err, &public) {
		text = public.Public()
	}
	if errors.As(err, &code) && code.StatusCode() == http.StatusBadRequest {
		// The request itself cannot be signed; that is the client's to mend.
		return &refusal{code: http.StatusBadRequest, reason: ReasonBadRequest,
			message: "execproxy: the request was not sent to " + p.server + ": " + text}
	}
	return &refusal{code: http.StatusServiceUnavailable, reason: ReasonSigning, retryAfter: 1,
		message: "execproxy: cannot sign the request for " + p.server + ", it was not sent: " + text}
}
