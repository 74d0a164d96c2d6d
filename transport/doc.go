// Package transport is the way out of the proxy: an http.RoundTripper that
// reaches one pinned API server and no other.
//
// # Connections
//
// Requests share one HTTP/2 connection (RFC 9113). It is dialled once however
// many requests wait for it, because each full TLS handshake costs a signature
// of the client's key, and that key may live in a slow device. A connection
// joins the pool only once the server has answered a PING after its SETTINGS:
// only then is it known that a TLS 1.3 server took the client certificate, and
// how many streams it allows. That costs one round trip on a cold connection
// and buys that a refused certificate is an error of the dial, not of a
// request that may have been processed.
//
// Another connection is dialled only when the server's
// SETTINGS_MAX_CONCURRENT_STREAMS is reached, or after a GOAWAY or a loss; such
// dials resume the TLS session and need no signature. A server without HTTP/2
// is served through a pool of HTTP/1.1 connections. Upgrades have a way of
// their own: one HTTP/1.1 connection each, never shared and never pooled.
// [Transport.TryReserve] hands out streams of the connections that are open, to
// those who pass frames on; the connections themselves are package h2's.
//
// # Generations
//
// TLS asks for the client certificate in full handshakes only: a live
// connection and a resumed session keep the identity they began with. Rotate
// therefore starts a new generation, with new connections and a new session
// cache. New requests go there at once; streams of the old generation go on,
// until the last has ended or the old certificate is about to expire.
//
// # Failures
//
// A dead peer is noticed by PING within PingInterval plus PingTimeout, 13
// seconds unless told otherwise, on HTTP/1.1 by TCP. Requests are repeated
// here only when the server surely never handled them (RFC 9113 section 8.7),
// and only while their body can still be sent from its beginning; everything
// else is returned as an *UpstreamError. The HTTP/1.1 pool is net/http's, which
// may also repeat safe methods (RFC 9110 section 9.2.2) on a kept connection
// that the server closed. An expired client certificate fails at once, without
// dialling.
package transport
