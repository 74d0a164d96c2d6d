package h2

import (
	"errors"
	"fmt"

	"golang.org/x/net/http2"
)

var (
	// ErrUnprocessed: the peer said that it has not handled, and will not handle, the
	// stream (GOAWAY, RFC 9113 section 6.8; REFUSED_STREAM). It may be sent again.
	ErrUnprocessed = errors.New("the peer did not process the stream")
	// ErrUnsent: nothing of it has been sent. It is an ErrUnprocessed, too.
	ErrUnsent = errors.New("nothing was sent")
	// ErrRetired: the connection takes no more streams, and none was opened.
	ErrRetired = errors.New("the connection takes no more streams")
	// ErrNoAnswer: a PING was not answered in time.
	ErrNoAnswer = errors.New("the peer does not answer")
	// ErrClosed: the connection was closed by its owner.
	ErrClosed = errors.New("the connection was closed")
	// ErrIdle: it had no streams for Options.IdleTime, or was shut down.
	ErrIdle = errors.New("the connection had nothing to do")
	// ErrOverrun: a stream was reset, because what is kept for slow readers is at its bound.
	ErrOverrun = errors.New("too much is kept for readers that do not read")
)

// A StreamError is the end of one stream.
type StreamError struct {
	Code   http2.ErrCode
	Remote bool   // the peer reset it; else it was reset for what the peer did
	Reason string // of the latter
}

func (e *StreamError) Error() string {
	if e.Remote {
		return "stream was reset: " + e.Code.String()
	}
	return fmt.Sprintf("stream error: %s (%s)", e.Reason, e.Code)
}

// Is makes a refused stream an ErrUnprocessed (RFC 9113 section 8.7).
func (e *StreamError) Is(target error) bool {
	return target == ErrUnprocessed && e.Remote && e.Code == http2.ErrCodeRefusedStream
}

// A ConnError is the end of a connection for what its peer did, or the peer's
// own reason for ending it.
type ConnError struct {
	Code   http2.ErrCode
	Remote bool
	Reason string
}

func (e *ConnError) Error() string {
	if e.Remote {
		return "connection was ended by the peer: " + e.Code.String()
	}
	return fmt.Sprintf("connection error: %s (%s)", e.Reason, e.Code)
}

func protocolError(reason string) error {
	return &ConnError{Code: http2.ErrCodeProtocol, Reason: reason}
}

// notProcessed says of one stream what its connection's end means for it.
type notProcessed struct {
	cause  error
	unsent bool
}

func (e *notProcessed) Error() string { return ErrUnprocessed.Error() + ": " + e.cause.Error() }
func (e *notProcessed) Is(target error) bool {
	return target == ErrUnprocessed || e.unsent && target == ErrUnsent
}
func (e *notProcessed) Unwrap() error { return e.cause }
