package proxy

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Policy decides on requests that bring a credential of their own.
type Policy uint8

const (
	// Reject answers them with 401.
	Reject Policy = iota
	// Passthrough sends them as they are, without our certificate and without
	// our signature: kube-apiserver prefers a certificate over a bearer token,
	// and adding ours would turn every service account into us.
	Passthrough
)

// wsBearer starts the WebSocket subprotocol in which kube-apiserver takes a
// bearer token from browsers. It is an Authorization by another name.
const wsBearer = "base64url.bearer.authorization.k8s.io."

// caller is what of a request decides whether it is admitted, whichever way it came.
type caller struct {
	Method   string
	Host     string
	Header   http.Header // Authorization, Sec-WebSocket-Protocol, Origin, Referer, Sec-Fetch-Site are looked at
	Verified bool        // its connection's client has shown the session's pair
}

// admit decides whether r may pass, and whether it goes out as itself
// (anonymous: nothing of ours is added).
func (p *Proxy) admit(r *caller, loopback bool) (anonymous bool, no *refusal) {
	if loopback {
		if no := guardBrowser(r); no != nil {
			return false, no
		}
	}
	switch r.Method {
	case http.MethodConnect, http.MethodTrace:
		return false, &refusal{code: http.StatusMethodNotAllowed, reason: ReasonMethodNotAllowed, hangUp: true,
			allow:   "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
			message: "execproxy: " + r.Method + " is not allowed: this proxy speaks for one API server and opens no tunnels"}
	}
	verified := r.Verified
	foreign := carriesCredential(r.Header)
	switch {
	case foreign && p.foreign == Passthrough:
		return true, nil
	case !verified && foreign:
		return false, &refusal{code: http.StatusUnauthorized, reason: ReasonUnauthorized,
			message: "execproxy: the request brings a bearer token or a password and no session certificate: " +
				"with --token, --username or a token in the kubeconfig the client skips the exec plugin; remove them, " +
				"or allow foreign credentials (foreignAuthorization: passthrough)"}
	case !verified:
		return false, &refusal{code: http.StatusUnauthorized, reason: ReasonUnauthorized,
			message: "execproxy: the request brings no certificate of this session (a proxy that was started anew has a new one): only the client pair that `execproxy exec` hands out opens this proxy; " +
				"use the kubeconfig that `execproxy kubeconfig` prints, or the newest one that `execproxy serve --kubeconfig-out` wrote, without --token and without another user; a kubelet needs rotateCertificates: false"}
	case foreign:
		return false, &refusal{code: http.StatusUnauthorized, reason: ReasonUnauthorized,
			message: "execproxy: the request brings an Authorization of its own, and this proxy authenticates as one identity: " +
				"remove the token (--token, --username, tokenFile), or allow foreign credentials (foreignAuthorization: passthrough)"}
	}
	return false, nil
}

func carriesCredential(h http.Header) bool {
	for _, v := range h["Authorization"] {
		if strings.TrimSpace(v) != "" {
			return true
		}
	}
	for _, v := range h["Sec-Websocket-Protocol"] {
		for t := range strings.SplitSeq(v, ",") {
			t = strings.TrimSpace(t)
			if len(t) >= len(wsBearer) && strings.EqualFold(t[:len(wsBearer)], wsBearer) {
				return true
			}
		}
	}
	return false
}

// guardBrowser keeps web pages out of the TCP listener. A page that rebinds
// its name to 127.0.0.1 is told by Host, any other one by what browsers add.
func guardBrowser(r *caller) *refusal {
	no := func(what string) *refusal {
		return &refusal{code: http.StatusForbidden, reason: ReasonForbidden, hangUp: true,
			message: "execproxy: " + what + ": this listener serves programs of this machine, as https://127.0.0.1:PORT, [::1] or localhost, and no web pages"}
	}
	if !loopbackHost(r.Host) {
		return no("the request's Host is not loopback")
	}
	for _, name := range [...]string{"Origin", "Referer"} {
		for _, v := range r.Header[name] {
			u, err := url.Parse(v)
			if err != nil || !loopbackHost(u.Host) {
				return no("the request's " + name + " is not loopback")
			}
		}
	}
	for _, v := range r.Header["Sec-Fetch-Site"] {
		switch strings.ToLower(strings.TrimSpace(v)) {
		case "same-origin", "same-site", "none":
		default:
			return no("the request comes from another web site")
		}
	}
	return nil
}

// loopbackHost reports whether host, with or without a port, is localhost,
// ::1, or in 127.0.0.0/8.
func loopbackHost(host string) bool {
	if rest, ok := strings.CutPrefix(host, "["); ok {
		addr, port, ok := strings.Cut(rest, "]")
		if !ok || port != "" && !isPort(port) {
			return false
		}
		ip, err := netip.ParseAddr(addr)
		return err == nil && ip.Is6() && ip.Zone() == "" && ip.IsLoopback()
	}
	name, port, ok := strings.Cut(host, ":")
	if ok && !isPort(":"+port) {
		return false
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Is4() && ip.IsLoopback()
}

func isPort(s string) bool {
	if len(s) > 6 || !strings.HasPrefix(s, ":") {
		return false
	}
	for _, c := range s[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
