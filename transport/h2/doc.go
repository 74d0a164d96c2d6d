// Package h2 speaks HTTP/2 (RFC 9113) on TLS connections, in either role, for a
// proxy: what one connection's streams bring goes out on another's, without a
// goroutine, a channel or a timer per stream.
//
// # How it runs
//
// A [Conn] has one goroutine, its reader, in [Conn.Run]; on Linux that one waits, and
// a poller's reads for many. It reads what there is
// without blocking, decrypts it, takes the frames apart and calls the
// [Receiver] of the stream that each belongs to. A receiver must not block: it
// calls methods of other streams, of this connection or of another. Those only
// append to the connection's output; what a batch of reads has made is encrypted
// and written once, when the batch is over. That is what a [Batch] is for:
// receivers hand on the one that they were given. Whoever has none gives nil,
// and what is appended is written at once.
//
// No lock is held while a receiver is called. A connection's lock is taken
// last, and no other while it is held, so a receiver may hold locks of its own.
//
// # Pushing back
//
// [Stream.Write] takes all that it is given. What the peer's windows or its slow
// reading do not let out is kept with the stream, and told by Receiver.Sent when
// it has gone. Bytes that came in are given back to their sender with
// [Stream.Consumed], after which the sender may send as many again. A receiver
// that gives back what has gone out, and no earlier, holds no more than a
// stream's window. All that all streams hold is bounded by a [Memory].
//
// # Handlers
//
// [Serve] has an http.Handler answer a stream, in a goroutine; [Configure] hangs
// that onto an http.Server.
//
// # What a peer may not do
//
// Frames are checked as RFC 9113 says, header fields by section 8.2. What is
// allowed but of no use, in a number that no client needs, ends the connection
// with ENHANCE_YOUR_CALM and is told to Options.Flood: resets of streams that were
// never answered (CVE-2023-44487), by the client or by us for what it did (CVE-2025-8671), CONTINUATION without end (CVE-2024-27316),
// SETTINGS, PING, empty DATA, windows that open byte by byte.
package h2
