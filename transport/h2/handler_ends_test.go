package h2

import (
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A handler that breaks off its answer is over, whatever the client has not read of it
// and not sent of its request.
func TestBrokenOffHandlers(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		for path, after := range map[string]func(){"/panic": func() { panic(http.ErrAbortHandler) }, "/short": func() {}} {
			ts, o := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "100000")
				_, _ = w.Write(make([]byte, 10_000))
				w.(http.Flusher).Flush()
				after()
			}))
			c := frameClient(t, ts.Listener.Addr().String(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
			id := c.ask(false, ":method", "POST", ":path", path)
			for {
				f := c.next()
				if f == nil {
					t.Fatalf("%s: no reset", path)
				}
				if r, ok := f.(*http2.RSTStreamFrame); ok && r.StreamID == id {
					break
				}
			}
			_ = c.NetConn().Close()
			over := make(chan struct{})
			go func() { o.Wait(); close(over) }()
			select {
			case <-over:
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: the handler is still there", path)
			}
		}
	})
}
