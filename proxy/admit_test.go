package proxy

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestSessionCertificateIsRequired(t *testing.T) {
	f := start(t, Options{Server: upstream(t, true, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })}, false)
	none := clientTLS()
	none.Certificates = nil
	for _, h2 := range []bool{false, true} {
		c := f.clientWith(t, h2, none)
		res, err := c.Get("https://x/api")
		if msg := wantStatus(t, res, err, 401, ReasonUnauthorized); !strings.Contains(msg, "execproxy kubeconfig") {
			t.Error(msg)
		}
		req, _ := http.NewRequest("GET", "https://x/api", nil)
		req.Header.Set("Authorization", "Bearer CANARY")
		res, err = c.Do(req)
		if msg := wantStatus(t, res, err, 401, ReasonUnauthorized); !strings.Contains(msg, "--token") || strings.Contains(msg, "CANARY") {
			t.Error(msg)
		}
	}
	// A certificate that only looks like one of ours does not open it either.
	other := newTestAuthority()
	foreign := clientTLS()
	foreign.Certificates = []tls.Certificate{other.issue("session", testCA().cert.NotAfter)}
	if res, err := f.clientWith(t, true, foreign).Get("https://x/"); err == nil && res.StatusCode != 401 {
		t.Errorf("a foreign certificate got %d", res.StatusCode)
	}
}

func TestForeignAuthorization(t *testing.T) {
	seen := make(chan *http.Request, 10)
	u := upstream(t, true, func(w http.ResponseWriter, r *http.Request) { seen <- r })
	anonymous := outbound(t, true)
	anonymous.TLSClientConfig.Certificates = nil
	o := Options{Server: u, Anonymous: anonymous, AnonymousUpgrade: anonymous,
		Sign: func(ctx, *Request) (http.Header, error) { return http.Header{"Authorization": {"ours"}}, nil }}

	with := func(name, value string) *http.Request {
		r, _ := http.NewRequest("GET", "https://x/", nil)
		r.Header.Set(name, value)
		return r
	}
	reject := start(t, o, false)
	o.ForeignAuthorization = Passthrough
	passes := start(t, o, false)

	bearer := with("Sec-WebSocket-Protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.Q0FOQVJZ")
	for _, r := range []*http.Request{with("Authorization", "Bearer CANARY"), bearer} {
		res, err := reject.client(t, true).Do(r)
		if msg := wantStatus(t, res, err, 401, ReasonUnauthorized); strings.Contains(msg, "CANARY") || !strings.Contains(msg, "foreignAuthorization") {
			t.Error(msg)
		}
	}
	if len(seen) != 0 {
		t.Fatal("a rejected request was sent")
	}

	none := clientTLS()
	none.Certificates = nil
	for _, c := range []*http.Client{passes.client(t, true), passes.clientWith(t, true, none)} {
		res, err := c.Do(with("Authorization", "Bearer theirs"))
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		body2s(t, res)
		r := <-seen
		if r.Header.Get("Authorization") != "Bearer theirs" || len(r.TLS.PeerCertificates) != 0 {
			t.Errorf("passed through with %v and %d of our certificates", r.Header, len(r.TLS.PeerCertificates))
		}
	}
	// Without a credential of its own it is ours, and not without the pair.
	body2s(t, get(t, passes.client(t, true), "https://x/"))
	if r := <-seen; r.Header.Get("Authorization") != "ours" || len(r.TLS.PeerCertificates) != 1 {
		t.Errorf("went out with %v and %d certificates", r.Header, len(r.TLS.PeerCertificates))
	}
	res, err := passes.clientWith(t, true, none).Get("https://x/")
	wantStatus(t, res, err, 401, ReasonUnauthorized)

	if strings.Contains(reject.logs.String(), "CANARY") {
		t.Error("the token is in the log")
	}
	if _, err := New(Options{Server: u, Transport: o.Anonymous, ForeignAuthorization: Passthrough}); err == nil {
		t.Error("passthrough without an anonymous way out: no error")
	}
}

func TestBrowserGuards(t *testing.T) {
	u := upstream(t, true, func(http.ResponseWriter, *http.Request) {})
	loop := start(t, Options{Server: u}, true)
	unix := start(t, Options{Server: u}, false)
	for head, want := range map[string]int{
		"Host: 127.0.0.1:41001":  200,
		"Host: 127.9.8.7":        200,
		"Host: localhost:1":      200,
		"Host: LOCALHOST":        200,
		"Host: [::1]:6443":       200,
		"Host: [::1]":            200,
		"Host: evil.test":        403,
		"Host: 127.0.0.1.evil":   403,
		"Host: localhost.evil:1": 403,
		"Host: 128.0.0.1":        403,
		"Host: 0.0.0.0:41001":    403,
		"Host: [::2]":            403,
		"Host: 2130706433":       403,
		"Host: 127.1":            403,
		"Host:":                  403,
		"Host: localhost\r\nOrigin: https://localhost:1":          200,
		"Host: localhost\r\nOrigin: http://127.0.0.1":             200,
		"Host: localhost\r\nOrigin: https://evil.test":            403,
		"Host: localhost\r\nOrigin: null":                         403,
		"Host: localhost\r\nOrigin:":                              403,
		"Host: localhost\r\nOrigin: https://localhost@evil.test":  403,
		"Host: localhost\r\nReferer: https://evil.test/localhost": 403,
		"Host: localhost\r\nReferer: https://[::1]:5/x":           200,
		"Host: localhost\r\nSec-Fetch-Site: cross-site":           403,
		"Host: localhost\r\nSec-Fetch-Site: same-origin":          200,
		"Host: localhost\r\nSec-Fetch-Site: none":                 200,
	} {
		if code := loop.rawCode(t, "GET / HTTP/1.1\r\n"+head+"\r\n\r\n"); code != want {
			t.Errorf("%q: %d, want %d", head, code, want)
		}
		if code := unix.rawCode(t, "GET / HTTP/1.1\r\n"+head+"\r\n\r\n"); code != 200 {
			t.Errorf("Unix socket, %q: %d", head, code)
		}
	}
	if code := loop.rawCode(t, "GET https://evil.test/ HTTP/1.1\r\nHost: localhost\r\n\r\n"); code != 403 {
		t.Errorf("absolute-form with a foreign host: %d", code)
	}
	h := newH2Client(t, loop)
	if code := h.answer(h.send(true, ":method", "GET", ":scheme", "https", ":authority", "evil.test", ":path", "/")); code != "403" {
		t.Errorf("HTTP/2 with a foreign authority: %s", code)
	}
	res, err := loop.client(t, true).Get("https://evil.test/")
	wantStatus(t, res, err, 403, ReasonForbidden)
}

func TestMethodsRefused(t *testing.T) {
	f := start(t, Options{Server: upstream(t, true, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })}, false)
	for _, head := range []string{"CONNECT evil.test:443", "CONNECT /x", "TRACE /x"} {
		_, r := f.raw(t, head+" HTTP/1.1\r\nHost: evil.test:443\r\n\r\n")
		res, err := http.ReadResponse(r, nil)
		wantStatus(t, res, err, 405, ReasonMethodNotAllowed)
		if !strings.Contains(res.Header.Get("Allow"), "GET") {
			t.Errorf("%s: no Allow in %v", head, res.Header)
		}
	}
	h := newH2Client(t, f)
	if code := h.answer(h.send(true, ":method", "CONNECT", ":authority", "evil.test:443")); code != "405" {
		t.Errorf("HTTP/2 CONNECT: %s", code)
	}
	if code := h.answer(h.send(true, ":method", "TRACE", ":scheme", "https", ":authority", "x", ":path", "/")); code != "405" {
		t.Errorf("HTTP/2 TRACE: %s", code)
	}
}

func TestHEADHasNoBody(t *testing.T) {
	f := start(t, Options{Server: upstream(t, true, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "70") })}, true)
	c, r := f.raw(t, "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	res, err := http.ReadResponse(r, &http.Request{Method: "HEAD"})
	if err != nil || res.StatusCode != 200 || res.ContentLength != 70 {
		t.Fatal(res, err)
	}
	fmt.Fprint(c, "HEAD / HTTP/1.1\r\nHost: evil\r\n\r\n")
	if res, err = http.ReadResponse(r, &http.Request{Method: "HEAD"}); err != nil || res.StatusCode != 403 || r.Buffered() != 0 {
		t.Errorf("%v, %v, %d bytes of body", res, err, r.Buffered())
	}
}
