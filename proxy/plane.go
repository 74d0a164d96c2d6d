package proxy

import (
	"context"
	"net/http"

	"github.com/execproxy/execproxy/transport/h2"
)

// triedKey is where a handler finds how often its request has been sent in vain, if it was a
// passage before.
type triedKey struct{}

// A Plane says who passes on a request that has come over a connection that speaks
// HTTP/2, at this moment, and what to call when it is over. With nil Streams the
// handler serves it.
type Plane func(c *h2.Conn) (s *Streams, done func())

// begin is Options.Begin of a connection: what cannot be passed on is the handler's.
func (plane Plane) begin(h http.Handler, o h2.ServeOptions) func(*h2.Batch, *h2.Stream, []h2.Field, bool) {
	slow := func(b *h2.Batch, s *h2.Stream, fields []h2.Field, end bool, body []byte, tried int) {
		o := o
		o.Body, o.Context = body, context.WithValue(o.Context, triedKey{}, tried)
		h2.Serve(b, s, fields, end, h, o)
	}
	return func(b *h2.Batch, s *h2.Stream, fields []h2.Field, end bool) {
		if plane != nil {
			streams, done := plane(s.Conn())
			if streams != nil && streams.Begin(b, s, fields, end, slow, done) {
				return
			}
			if done != nil {
				done()
			}
		}
		h2.Serve(b, s, fields, end, h, o)
	}
}
