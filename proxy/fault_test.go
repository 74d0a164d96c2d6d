package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

func deadAddress(t testing.TB) *url.URL {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &url.URL{Scheme: "https", Host: l.Addr().String()}
}

func TestUpstreamFaults(t *testing.T) {
	good := upstream(t, true, func(http.ResponseWriter, *http.Request) {})
	strict := func() *url.URL {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.TLS = serverTLS()
		s.TLS.ClientAuth = tls.RequireAndVerifyClientCert
		s.Config.ErrorLog = NewServer(nil, ServerOptions{}).ErrorLog
		s.StartTLS()
		t.Cleanup(s.Close)
		u, _ := url.Parse(s.URL)
		return u
	}()
	expired := func() *url.URL {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.TLS = &tls.Config{Certificates: []tls.Certificate{testCA().issue("upstream.test", time.Now().Add(-time.Minute))}}
		s.Config.ErrorLog = NewServer(nil, ServerOptions{}).ErrorLog
		s.StartTLS()
		t.Cleanup(s.Close)
		u, _ := url.Parse(s.URL)
		return u
	}()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	plainURL, _ := url.Parse(plain.URL)
	plainURL.Scheme = "https"
	transport := func(change func(tr *http.Transport)) *http.Transport {
		tr := outbound(t, true)
		change(tr)
		return tr
	}
	for name, c := range map[string]struct {
		server *url.URL
		tr     *http.Transport
		code   int
		reason string
		says   string
	}{
		"refused":             {deadAddress(t), outbound(t, true), 503, ReasonUnavailable, "connection refused"},
		"no such name":        {&url.URL{Scheme: "https", Host: "no-such-host.invalid:6443"}, outbound(t, true), 503, ReasonUnavailable, "no-such-host.invalid:6443"},
		"unknown CA":          {good, transport(func(tr *http.Transport) { tr.TLSClientConfig.RootCAs = newTestAuthority().pool }), 502, ReasonUntrusted, "--certificate-authority"},
		"wrong name":          {good, transport(func(tr *http.Transport) { tr.TLSClientConfig.ServerName = "other.test" }), 502, ReasonUntrusted, "--tls-server-name"},
		"expired":             {expired, outbound(t, true), 502, ReasonUntrusted, "clock"},
		"our pair is refused": {strict, transport(func(tr *http.Transport) { tr.TLSClientConfig.Certificates = nil }), 502, ReasonCertificateRefused, "--cert"},
		"plain HTTP":          {plainURL, outbound(t, true), 502, ReasonBadGateway, "does not speak TLS"},
		"no HTTP":             {scriptedHTTP1(t, "SSH-2.0-OpenSSH_9.2\r\n"), outbound(t, false), 502, ReasonBadGateway, "broke off"},
		"handshake stalls":    {silent(t), transport(func(tr *http.Transport) { tr.TLSHandshakeTimeout = 50 * time.Millisecond }), 504, ReasonTimeout, "in time"},
		"dial times out": {good, transport(func(tr *http.Transport) {
			tr.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, context.DeadlineExceeded }
		}), 504, ReasonTimeout, "in time"},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, Options{Server: c.server, Transport: c.tr}, false)
			res, err := f.client(t, true).Get("https://x/")
			msg := wantStatus(t, res, err, c.code, c.reason)
			if !strings.Contains(msg, c.says) || !strings.Contains(msg, "https://"+c.server.Host) {
				t.Error(msg)
			}
			if f.Stats().Errors[c.reason] != 1 {
				t.Errorf("%+v", f.Stats())
			}
		})
	}
}

// silent accepts, and says nothing.
func silent(t testing.TB) *url.URL {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &url.URL{Scheme: "https", Host: l.Addr().String()}
}

type publicError struct{}

func (publicError) Error() string  { return "CANARY" }
func (publicError) Public() string { return "credentials have expired: run `aws sso login`" }

func TestSigningFaults(t *testing.T) {
	for _, c := range []struct {
		err  error
		says string
	}{
		{fmt.Errorf("loading: %w", publicError{}), "loading"},
		{errors.New("token is gone"), "token is gone"},
		{errors.New("bad key AKIACANARY0000000001 with wJalrCANARYMI0K7MDENGbPxRfiCYEXAMPLEKEY\nCANARY"), "[redacted]"},
	} {
		f := start(t, Options{Server: deadAddress(t), Sign: func(ctx, *Request) (http.Header, error) { return nil, c.err }}, false)
		res, err := f.client(t, true).Get("https://x/")
		msg := wantStatus(t, res, err, 503, ReasonSigning)
		if errors.As(c.err, new(publicError)) {
			c.says = "aws sso login"
		}
		if !strings.Contains(msg, c.says) || strings.Contains(msg+f.logs.String(), "CANARY") || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s\n%s", msg, f.logs.String())
		}
	}
}

// Nothing that could be a secret is in a log or in an answer of ours, whatever
// happens to the request.
func TestCanariesStayInside(t *testing.T) {
	const canary = "CANARY"
	var answers strings.Builder
	var logs []*front
	for name, o := range map[string]Options{
		"good": {Server: upstream(t, true, func(w http.ResponseWriter, r *http.Request) {})},
		"aborted": {Server: upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte("x"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})},
		"dead": {Server: deadAddress(t)},
		"odd":  {Server: scriptedHTTP1(t, "HTTP/1.1 CANARY\r\n\r\n"), Transport: outbound(t, false)},
		"hash": {Server: deadAddress(t), HashBody: true, MaxHashedBody: 10},
	} {
		o.Sign = func(ctx, *Request) (http.Header, error) {
			return http.Header{"Authorization": {"Bearer CANARY-signature"}, "X-Amz-Security-Token": {"CANARY-token"}}, nil
		}
		f := start(t, o, name == "good")
		logs = append(logs, f)
		for _, head := range []string{"", "Authorization: Bearer CANARY\r\n", "Cookie: CANARY\r\n", "Connection: Impersonate-User\r\nImpersonate-User: CANARY\r\n",
			"Upgrade: websocket\r\nConnection: Upgrade\r\n", "X-Amz-Security-Token: CANARY\r\n", "Origin: https://CANARY\r\n"} {
			for _, target := range []string{"/?token=CANARY", "/#CANARY", "https://CANARY/"} {
				_, r := f.raw(t, "POST "+target+" HTTP/1.1\r\nHost: localhost\r\n"+head+"Content-Length: 11\r\n\r\nCANARY body")
				if res, err := http.ReadResponse(r, nil); err == nil {
					_ = res.Write(&answers)
					res.Body.Close()
				}
			}
		}
	}
	if strings.Contains(answers.String(), canary) {
		t.Errorf("in an answer:\n%s", answers.String())
	}
	for _, f := range logs {
		if s := f.logs.String(); strings.Contains(s, canary) || s == "" {
			t.Errorf("in the log, or nothing is:\n%s", s)
		}
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"plain words":                  "plain words",
		"AKIAIOSFODNN7EXAMPLE expired": "[redacted] expired",
		"a\nb":                         "a",
		"eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.e30.c2ln": "[redacted].e30.c2ln",
		"arn:aws:iam::123456789012:role/x":            "arn:aws:iam::123456789012:role/x",
		"InsufficientAuthenticationMethod":            "InsufficientAuthenticationMethod",
		"dial tcp 10.0.0.1:6443: timeout":             "dial tcp 10.0.0.1:6443: timeout",
	} {
		if got := redact(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := redact(strings.Repeat("word ", 200)); len(got) > redactText+4 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestWriteStatus(t *testing.T) {
	w := httptest.NewRecorder()
	WriteStatus(w, httptest.NewRequest("GET", "/", nil), 503, "Draining", "execproxy: \"quoted\"")
	const want = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"execproxy: \"quoted\"","reason":"Draining","code":503}` + "\n"
	if w.Code != 503 || w.Body.String() != want || w.Header().Get(ErrorHeader) != "Draining" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}
