package h2

import (
	"log/slog"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Field is a header field, its name in lower case. Sensitive ones are never put
// into a table of HPACK (RFC 7541 section 7.1.3).
type Field = hpack.HeaderField

// A Receiver is the owner of a stream. Its methods must not block, and what they
// are given is theirs for the length of the call. The connection's reader calls
// them one after the other, but Sent, which may come at the same time.
type Receiver interface {
	// Header brings the final response, ":status" first, to a client's stream.
	// Informational ones are left out.
	Header(b *Batch, fields []Field, end bool)
	// Data brings a piece of the body. All of it must be given back with
	// Stream.Consumed, sooner or later.
	Data(b *Batch, p []byte, end bool)
	// Trailer ends the body.
	Trailer(b *Batch, fields []Field)
	// Sent tells that n bytes that Write has kept have gone out.
	Sent(b *Batch, n int)
	// Closed tells that the stream has ended before both sides had said all, and
	// why: a *StreamError, or what ended the connection. Nothing comes after it. It
	// is not called for a stream that its owner has reset.
	Closed(b *Batch, err error)
}

// Options configure a Conn. Zero values stand for the defaults.
type Options struct {
	// Begin is called for every request that a client sends; its presence makes a
	// Conn a server's. The fields are valid: pseudo fields first, each at most once.
	// Stream.Attach says who gets the rest.
	Begin func(b *Batch, s *Stream, fields []Field, end bool)

	// MaxStreams is how many a client may have open. Default 1000.
	MaxStreams uint32
	// StreamWindow is how many bytes a peer may send on a stream ahead of what is given
	// back; ConnWindow on all of them. Defaults 256 KiB, and 4 MiB for a server or
	// 1 GiB for a client, whose streams belong to clients that must not wait for each other;
	// less than 65,535 is as much.
	StreamWindow, ConnWindow int32
	// MaxStreamWindow is what a stream's window grows to while it is emptied as fast
	// as it is filled. Default: it does not grow.
	MaxStreamWindow int32
	// MaxFrame is the largest frame that a peer may send. Default 16 KiB.
	MaxFrame uint32
	// MaxHeader is the largest header, as counted by SETTINGS_MAX_HEADER_LIST_SIZE.
	// A request over it is answered with 431. Default 1 MiB.
	MaxHeader uint32

	// HeaderTime is how long a frame, or a header block, may take from its first byte
	// to its last. Default 10 s.
	HeaderTime time.Duration
	// IdleTime ends a connection without streams. 0: never.
	IdleTime time.Duration
	// PingInterval is how long the peer may be silent before it is asked whether it is
	// there, PingTimeout how long its answer may take. 0: it is never asked.
	PingInterval, PingTimeout time.Duration

	// Memory bounds what streams keep that cannot go out. Nil: a Memory of this connection's own.
	Memory *Memory

	// Flood is told when a connection is ended for what its peer does: "reset",
	// "continuation", "settings", "ping", "data", "window", "priority", "header",
	// "unread", "other".
	Flood func(kind string)
	// Retired is called once, when the connection takes no more streams: it has been
	// asked to go away, or has ended. It must not block.
	Retired func()

	Logger *slog.Logger // nil: silence
}

func (o *Options) defaults() {
	if o.MaxStreams == 0 {
		o.MaxStreams = 1000
	}
	if o.StreamWindow == 0 {
		o.StreamWindow = 256 << 10
	}
	if o.MaxStreamWindow < o.StreamWindow {
		o.MaxStreamWindow = o.StreamWindow
	}
	if o.ConnWindow == 0 {
		o.ConnWindow = 1 << 30
		if o.Begin != nil {
			o.ConnWindow = 4 << 20
		}
	}
	// A peer may send as much before it has read our SETTINGS.
	o.StreamWindow, o.ConnWindow = max(o.StreamWindow, defaultWindow), max(o.ConnWindow, defaultWindow)
	if o.MaxFrame < minFrame {
		o.MaxFrame = minFrame
	}
	if o.MaxHeader == 0 {
		o.MaxHeader = 1 << 20
	}
	if o.HeaderTime == 0 {
		o.HeaderTime = 10 * time.Second
	}
	if o.Memory == nil {
		o.Memory = NewMemory(0)
	}
	if o.Flood == nil {
		o.Flood = func(string) {}
	}
	if o.Retired == nil {
		o.Retired = func() {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}
