package proxy

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// respond passes the answer on. If it breaks off, so does the client's.
func (x *exchange) respond(res *http.Response) {
	h := x.w.Header()
	closing := h["Connection"] // set by us, if at all
	responseHeader(h, res.Header)
	if closing != nil {
		h["Connection"] = closing
	}
	announced := announceTrailer(h, res, x.r)
	x.w.WriteHeader(res.StatusCode)
	x.log(res.StatusCode)

	flush := flusher(x.w)
	left := res.ContentLength // -1: unknown
	if x.r.Method == http.MethodHead || res.StatusCode == http.StatusNotModified || res.StatusCode == http.StatusNoContent {
		left = 0
	}
	if left < 0 {
		// A watch has an answer before it has an event.
		if flush() != nil {
			x.abort(errClientGone)
		}
	}
	if _, err := x.p.buffers.relay(x.w, res.Body, left > smallBuffer, flush); err != nil {
		x.abort(err)
	}
	if left < 0 && x.ctx.Err() != nil {
		// An HTTP/1.1 server that hears of our cut may still end its answer in good
		// order, before the connection is gone. It is cut all the same.
		x.abort(x.ctx.Err())
	}
	if len(res.Trailer) > 0 {
		sendTrailer(h, res.Trailer, announced)
	}
}

var errClientGone = errors.New("client is gone")

// abort ends the client's stream so that it cannot be taken for complete.
func (x *exchange) abort(err error) {
	var w *writeError
	switch {
	case x.gone(), errors.As(err, &w), errors.Is(err, errClientGone):
		x.p.count.cancelled.Add(1)
	default:
		x.p.count.truncated.Add(1)
		x.p.log.LogAttrs(x.ctx, slog.LevelWarn, "response broke off, the client's stream is aborted",
			slog.String("server", x.p.server), slog.String("method", x.r.Method), slog.String("error", redactUpstream(err)))
	}
	if x.body != nil && x.body.upload != nil && x.r.ProtoMajor == 1 && !x.body.upload.finished() {
		// net/http would wait for the rest of the upload before it hangs up.
		_ = x.body.upload.control.SetReadDeadline(time.Unix(1, 0))
	}
	panic(http.ErrAbortHandler)
}

func (x *exchange) log(code int) {
	if x.p.log.Enabled(x.ctx, slog.LevelDebug) {
		x.p.log.LogAttrs(x.ctx, slog.LevelDebug, "request",
			slog.String("method", x.r.Method), slog.String("path", x.target.path), slog.Int("code", code), slog.Duration("took", x.took))
	}
}

func flusher(w http.ResponseWriter) func() error {
	if f, ok := w.(interface{ FlushError() error }); ok {
		return f.FlushError
	}
	return http.NewResponseController(w).Flush
}

// announceTrailer names the trailer fields that the server announced.
func announceTrailer(h http.Header, res *http.Response, r *http.Request) int {
	if len(res.Trailer) == 0 {
		return 0
	}
	names := make([]string, 0, len(res.Trailer))
	for name := range res.Trailer {
		names = append(names, name)
	}
	slices.Sort(names)
	h["Trailer"] = []string{strings.Join(names, ", ")}
	if r.ProtoMajor == 1 {
		h.Del("Content-Length") // HTTP/1.1 has trailers only after chunks
	}
	return len(names)
}

func sendTrailer(h, trailer http.Header, announced int) {
	for name, values := range trailer {
		if len(values) == 0 || slices.Contains(responsePolicy, name) {
			continue // net/http's HTTP/2 server does not end a stream whose trailer has only names
		}
		if len(trailer) != announced { // some came unannounced
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
}

// writeError is an error of the destination.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// relay copies src to dst until io.EOF, flushing after every read. It waits
// with a small buffer and takes a large one while there is much to copy.
func (b *buffers) relay(dst io.Writer, src io.Reader, large bool, flush func() error) (int64, error) {
	var total int64
	for {
		var n int
		var err error
		if large {
			buf := b.large.Get().(*[largeBuffer]byte)
			n, err = pump(dst, src, buf[:], flush)
			b.large.Put(buf)
		} else {
			buf := b.small.Get().(*[smallBuffer]byte)
			n, err = pump(dst, src, buf[:], flush)
			b.small.Put(buf)
		}
		total += int64(n)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		large = n >= smallBuffer
	}
}

// pump is one step of relay.
func pump(dst io.Writer, src io.Reader, buf []byte, flush func() error) (int, error) {
	n, err := src.Read(buf)
	if n == 0 {
		return 0, err
	}
	if _, werr := dst.Write(buf[:n]); werr != nil {
		return n, &writeError{werr}
	}
	if flush != nil && err != io.EOF {
		if ferr := flush(); ferr != nil {
			return n, &writeError{ferr}
		}
	}
	return n, err
}
