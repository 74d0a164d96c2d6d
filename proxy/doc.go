// Package proxy is the HTTP handler in front of one pinned Kubernetes API
// server.
//
// A request comes in over a private listener from a client that shows the
// session's certificate; it goes out, authenticated, to [Options.Server] and
// nowhere else. What the client says about destinations (an absolute-form
// target, a foreign Host) never decides where the proxy dials.
//
// # What is kept, what is changed
//
// The path and the query of the request target leave byte for byte as they
// came: `//`, `%2f`, dot segments, `;`, the order of repeated keys. A target
// that cannot be kept exactly is answered with 400. The header follows one
// table, in header.go. Bodies are streamed in both directions, and every read
// from the server is flushed to the client at once, so that the first byte of
// a watch does not wait for the second.
//
// Signing is the last step before the wire: [Options.Sign] sees the fields
// that will be sent, and only the fields that it returns are added.
//
// # Two ways in
//
// HTTP/1.1 and upgrades are served by handlers, [Proxy.Unix] and [Proxy.Loopback],
// and [Options.Transport]. What comes over HTTP/2 is passed on from stream to stream
// by [Streams], without a goroutine or a header map of its own, where nothing has to
// be waited for but a connection. Whatever else is to be waited for (credentials, space
// for a large body, a server without HTTP/2), and whatever is refused before it is
// sent, is the handlers', too. The policies are one table and one function for both
// ways, and so are the answers of the proxy's own.
//
// # Failures
//
// Answers of the proxy itself are metav1.Status documents and carry the header
// Execproxy-Error; an answer without it is the server's. A response that the
// server did not finish is never finished towards the client: the HTTP/1.1
// connection or the HTTP/2 stream is aborted. A request is sent a second time
// only if it is sure that the server did not process the first one (or if the
// server refused its signature and [Options.Refused] says that a new one may
// do), and the proxy signs it again for that.
//
// # What is not done
//
// No X-Forwarded-For and no Via are added: the proxy is the client's own half.
// Informational (1xx) responses are not passed on: kube-apiserver sends none,
// and 100-continue is answered on the client's hop, when its body is read.
// Redirects are passed on, never followed. CONNECT and TRACE are refused.
// Cookies are not forwarded: they are ambient credentials that the API server
// ignores.
//
// The package reads no environment, no flags and no files, and logs only to
// [Options.Logger]: never a header, a query or a body.
package proxy
