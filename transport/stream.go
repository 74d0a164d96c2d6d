package transport

import (
	"context"
	"errors"
	"time"

	"github.com/execproxy/execproxy/transport/h2"
)

// TryReserve reserves a stream on a connection of the current identity that is open
// already, for [h2.Conn.Open] or [h2.Conn.RoundTrip], or to be given back with
// [h2.Conn.Release]. It never blocks and dials nothing. Nil: there is no stream at hand,
// the identity has expired, or the Transport is closed; RoundTrip then dials, or tells what
// is wrong.
func (t *Transport) TryReserve() *h2.Conn {
	g := t.current.Load()
	if g == nil {
		return nil
	}
	now := t.now()
	if g.past(now) {
		return nil
	}
	for _, c := range *g.conns.Load() {
		if c.reserve() {
			g.touch(now)
			return c.h2
		}
	}
	return nil
}

// Reserve waits for what TryReserve returns, dialling where it has to. The error is that of
// ctx, an *UpstreamError, or one that says that the server has no HTTP/2, where RoundTrip
// knows another way.
func (t *Transport) Reserve(ctx context.Context) (*h2.Conn, error) {
	for {
		g, now := t.current.Load(), t.now()
		if err := t.ready(g, now); err != nil {
			return nil, err
		}
		g.touch(now)
		c, err := g.conn(ctx)
		switch {
		case err == nil:
			return c.h2, nil
		case !errors.Is(err, errRetired):
			return nil, err
		case t.current.Load() == g || t.current.Load() == nil:
			return nil, t.endedError()
		}
	}
}

// StreamError is what RoundTrip would return for a request that failed with err on a
// stream from TryReserve before its answer began: an *UpstreamError, or err itself where it is not
// the server's doing.
func (t *Transport) StreamError(err error) error {
	if err == nil {
		return nil
	}
	return streamError(t.o.Address, err)
}

// touch notes that g is in use. Clients of all cores come here: it is written once
// in a while.
func (g *generation) touch(now time.Time) {
	if n := now.UnixNano(); n-g.used.Load() > int64(usedStep) {
		g.used.Store(n)
	}
}

// streamError classifies the failure of a request that had a connection.
func streamError(server string, err error) error {
	var u *UpstreamError
	if errors.As(err, &u) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e := &UpstreamError{Server: server, Err: err}
	var s *h2.StreamError
	switch {
	case errors.Is(err, h2.ErrUnprocessed):
		// RST_STREAM with REFUSED_STREAM, a GOAWAY that excludes the stream (RFC 9113
		// section 8.7), or a connection that ended before anything was sent.
		e.Kind, e.Hint, e.unsent = ErrNotProcessed, "send the request again", true
		if why := errors.Unwrap(err); why != nil {
			e.Err = why // that it was not processed is said already
		}
	case errors.As(err, &s), errors.Is(err, h2.ErrOverrun):
		e.Kind, e.Hint = ErrStreamReset, lookFirst
	case refusesCertificate(err):
		e.Kind, e.Hint = ErrCertificateRefused, "check that the cluster trusts its issuer and that it is neither expired nor revoked"
	case isConnError(err):
		e.Kind, e.Hint = ErrConnectionLost, lookFirst
	default:
		// The request itself, or its body: nothing to say about the server.
		return err
	}
	return e
}

const lookFirst = "the request may have been processed; look before repeating it"

// bodyError classifies the failure of an answer that had begun: the request was
// handled, whatever the server says afterwards.
func bodyError(server string, err error) error {
	err = streamError(server, err)
	var u *UpstreamError
	if errors.As(err, &u) && u.unsent {
		return &UpstreamError{Kind: ErrStreamReset, Server: server, Err: u.Err, Hint: lookFirst}
	}
	return err
}
