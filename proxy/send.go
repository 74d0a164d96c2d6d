package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// errUnsent comes back from a transport that wanted to send a request again
// and asked for the body: GetBody is our way to hear about it. HTTP/2
// transports ask only where the server cannot have processed the request
// (REFUSED_STREAM, or a GOAWAY that excludes it: RFC 9113 section 8.7), HTTP/1.1
// ones where nothing was written. Then we sign again, which they cannot.
var errUnsent = errors.New("request was not processed")

// unsent reports whether the request surely was not processed: the transport
// asked for its body again, or says so itself.
func unsent(err error) bool {
	var u interface{ NotProcessed() bool }
	return errors.Is(err, errUnsent) || errors.As(err, &u) && u.NotProcessed()
}

func refuseReplay() (io.ReadCloser, error) { return nil, errUnsent }

// exchange is one request and its answer.
type exchange struct {
	p         *Proxy
	w         http.ResponseWriter
	r         *http.Request
	ctx       context.Context
	flight    flight
	anonymous bool

	target  target
	upgrade string // protocol to upgrade to, as the client spelled it
	body    *body
	cut     atomic.Bool // see upload
	left    atomic.Bool // the client went, and nobody had cut its body by then
	signed  bool
	took    time.Duration
}

func (x *exchange) close() { x.body.release() }

// watch makes the context of the exchange: it ends with the client's, which
// ends when the connection does. Over HTTP/1.1 that is also when we interrupt
// the reading of an upload that the server does not want, and then the answer
// still has to reach the client.
func (x *exchange) watch() (stop func()) {
	parent := x.r.Context()
	if x.r.ProtoMajor != 1 || x.r.ContentLength == 0 {
		ctx, cancel := context.WithCancel(parent)
		x.ctx = ctx
		return cancel
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	x.ctx = ctx
	context.AfterFunc(parent, func() {
		if !x.cut.Load() {
			x.left.Store(true) // before the transport closes the body, which cuts it
			cancel()
		}
	})
	return cancel
}

// gone reports whether the client has left.
func (x *exchange) gone() bool {
	return x.left.Load() || x.r.Context().Err() != nil && !x.cut.Load()
}

// run does it all; a returned error means that nothing was answered yet.
func (x *exchange) run() error {
	var err error
	if x.target, err = parseTarget(x.r.RequestURI, x.p.base, x.r.ProtoMajor == 1); err != nil {
		return &refusal{code: http.StatusBadRequest, reason: ReasonBadRequest, hangUp: true,
			message: "execproxy: " + err.Error()}
	}
	if x.upgrade = upgradeProtocol(x.r); x.upgrade != "" {
		return x.switchProtocols()
	}
	if x.r.ProtoMajor == 1 && (len(x.r.TransferEncoding) > 0 || hasToken(x.r.Header["Connection"], "upgrade")) {
		// A protocol that is not ours: the request is served without it, and what
		// the client may have sent behind it in that protocol is not read as HTTP.
		// Chunks: net/http does not tell whether a Content-Length stood beside them,
		// after which the connection must be closed (RFC 9112 section 6.1).
		x.w.Header().Set("Connection", "close")
	}
	if x.body, err = x.prepareBody(); err != nil {
		return err
	}
	res, err := x.send(x.way().plain)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 999 {
		return errors.New("status code out of range") // a 101 that nobody asked for, for one
	}
	x.respond(res)
	return nil
}

func (x *exchange) way() way {
	if x.anonymous {
		return x.p.anonymous
	}
	return x.p.named
}

// attempts is how often a request is sent at most. Each but the last was not
// processed by the server.
const attempts = 6

// pause is waited before the attempt of a number: a GOAWAY is the usual reason, and the next
// connection as good as any; a server that goes on declining has enough to do.
func pause(ctx context.Context, n int) error {
	if n < 3 {
		return nil
	}
	t := time.NewTimer(5 * time.Millisecond << n)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send signs and sends, again if it is sure that the server did nothing.
func (x *exchange) send(rt http.RoundTripper) (*http.Response, error) {
	tried, _ := x.r.Context().Value(triedKey{}).(int)
	for n := tried + 1; ; n++ {
		out, err := x.request()
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		res, err := rt.RoundTrip(out)
		x.took = time.Since(begun)
		if n == attempts || x.ctx.Err() != nil {
			return res, err
		}
		switch {
		case unsent(err) && pause(x.ctx, n+1) == nil && x.body.again():
		case err == nil && x.signedAnew(res):
			n = attempts - 1 // once
			res.Body.Close()
		default:
			return res, err
		}
		x.p.count.retries.Add(1)
		x.p.log.LogAttrs(x.ctx, slog.LevelDebug, "sending again", slog.String("server", x.p.server), slog.String("method", x.r.Method))
	}
}

// signedAnew reports whether a refused signature shall be made again.
func (x *exchange) signedAnew(res *http.Response) bool {
	if !x.signed || x.p.refused == nil || res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusForbidden {
		return false
	}
	return x.p.refused(res, x.took) && x.body.again()
}

// request makes the outgoing request, signed.
func (x *exchange) request() (*http.Request, error) {
	p := x.p
	header, err := p.rules.requestHeader(x.r.Header, x.anonymous)
	if err != nil {
		return nil, err
	}
	if p.sign != nil && !x.anonymous {
		if err := x.authenticate(header); err != nil {
			return nil, err
		}
	}
	if _, ok := header["User-Agent"]; !ok {
		header["User-Agent"] = nil // absent stays absent: net/http would say Go-http-client
	}
	if x.upgrade != "" {
		header["Connection"] = []string{"Upgrade"}
		header["Upgrade"] = []string{x.upgrade}
	}
	out := x.r.WithContext(x.ctx)
	out.URL = x.target.url("https", p.host)
	out.Host = p.authority
	out.Header = header
	out.Body, out.GetBody, out.ContentLength = nil, nil, 0
	out.Trailer, out.TransferEncoding = nil, nil
	out.Proto, out.ProtoMajor, out.ProtoMinor = "HTTP/1.1", 1, 1
	out.RequestURI, out.RemoteAddr, out.Pattern = "", "", ""
	out.TLS, out.Form, out.PostForm, out.MultipartForm = nil, nil, nil, nil
	out.Close = false
	if b := x.body; b != nil {
		if rd := b.reader(); rd != nil {
			out.Body, out.ContentLength = rd, b.length
			out.Trailer = b.trailer()
			out.GetBody = refuseReplay
		}
	}
	return out, nil
}

func (x *exchange) authenticate(header http.Header) error {
	p := x.p
	view := Request{
		Method: x.r.Method, Scheme: "https", Authority: p.authority,
		Path: x.target.path, RawQuery: x.target.query, Header: header,
	}
	switch {
	case x.body != nil:
		view.ContentSHA256 = x.body.sha256
	case p.hash:
		view.ContentSHA256 = emptySHA256
	}
	fields, err := p.sign(x.ctx, &view)
	if err == nil {
		err = mergeSigned(header, fields)
	}
	if err != nil {
		if x.ctx.Err() != nil {
			return x.ctx.Err()
		}
		no := p.signFault(err)
		p.log.LogAttrs(x.ctx, slog.LevelError, "signing failed",
			slog.String("server", p.server), slog.String("error", no.message))
		return no
	}
	p.count.signed.Add(1)
	x.signed = true
	return nil
}
