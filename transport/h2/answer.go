package h2

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// answer is the http.ResponseWriter of a stream.
type answer struct {
	v      *serving
	head   bool          // the request was a HEAD
	bw     *bufio.Writer // in front of chunk; nil once the handler has returned
	header http.Header   // the handler's own
	snap   http.Header   // as it was when WriteHeader was called

	status   int
	wrote    bool // WriteHeader was called
	sent     bool // and the header is on its way
	done     bool // the handler has returned
	length   int64
	written  int64
	trailers []string
}

var (
	_ http.Flusher = (*answer)(nil)

	// As net/http's: what is smaller goes out in one piece, with its length.
	answerBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 4<<10) }}
	lists         = sync.Pool{New: func() any { return new([]Field) }}
)

func newAnswer(v *serving, r *http.Request) *answer {
	w := &answer{v: v, head: r.Method == http.MethodHead, bw: answerBuffers.Get().(*bufio.Writer), header: make(http.Header), length: -1}
	w.bw.Reset(chunker{w})
	return w
}

// Header is the answer's, and after WriteHeader where trailers are put.
func (w *answer) Header() http.Header { return w.header }

// WriteHeader settles the header, and sends informational ones (1xx).
func (w *answer) WriteHeader(code int) {
	if w.wrote || w.done {
		return
	}
	if code < 100 || code > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %d", code))
	}
	if code <= 199 {
		w.inform(code)
		return
	}
	w.wrote, w.status = true, code
	w.snap = w.header.Clone()
	if length := w.snap.Get("Content-Length"); length != "" {
		if n, err := strconv.ParseUint(length, 10, 63); err == nil {
			w.length = int64(n)
		} else {
			delete(w.snap, "Content-Length")
		}
	}
}

func (w *answer) inform(code int) {
	if code == http.StatusSwitchingProtocols { // RFC 9113 section 8.6
		return
	}
	fields := []Field{{Name: ":status", Value: strconv.Itoa(code)}}
	for name, values := range w.header {
		if name != "Content-Length" {
			fields = appendFields(fields, name, values)
		}
	}
	b := batches.Get().(*Batch)
	w.v.mu.Lock()
	if code == http.StatusContinue {
		w.v.expect = false
	}
	w.v.s.Header(b, fields, false)
	w.v.mu.Unlock()
	b.Flush()
	batches.Put(b)
}

func (w *answer) Write(p []byte) (int, error) {
	if err := w.writing(len(p)); err != nil {
		return 0, err
	}
	return w.bw.Write(p)
}

// WriteString is Write.
func (w *answer) WriteString(s string) (int, error) {
	if err := w.writing(len(s)); err != nil {
		return 0, err
	}
	return w.bw.WriteString(s)
}

func (w *answer) writing(n int) error {
	if w.done {
		return errWritten
	}
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(w.status) {
		return http.ErrBodyNotAllowed
	}
	if w.length >= 0 && w.written+int64(n) > w.length {
		return http.ErrContentLength
	}
	w.written += int64(n)
	return nil
}

// Flush sends what is buffered.
func (w *answer) Flush() { _ = w.FlushError() }

// FlushError is Flush for http.ResponseController.
func (w *answer) FlushError() error {
	if w.done {
		return errWritten
	}
	if w.bw.Buffered() > 0 {
		return w.bw.Flush()
	}
	if _, err := w.chunk(nil); err != nil {
		return err
	}
	w.v.mu.Lock()
	defer w.v.mu.Unlock()
	return w.v.err
}

// EnableFullDuplex is for HTTP/1.1; here it always is.
func (w *answer) EnableFullDuplex() error { return nil }

type chunker struct{ w *answer }

func (c chunker) Write(p []byte) (int, error) { return c.w.chunk(p) }

// chunk sends the header, if that is still to do, and a piece of the body.
func (w *answer) chunk(p []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	b := batches.Get().(*Batch)
	defer func() {
		b.Flush()
		batches.Put(b)
	}()
	if w.done {
		w.promote()
	}
	if !w.sent {
		w.sent = true
		if w.sendHeader(b, p) {
			return len(p), nil
		}
	}
	if w.head || len(p) == 0 && !w.done {
		return len(p), nil
	}
	trailer := w.done && slices.ContainsFunc(w.trailers, func(name string) bool { return hasKey(w.header, name) })
	if len(p) > 0 || w.done && !trailer {
		if err := w.v.write(b, p, w.done && !trailer); err != nil {
			return 0, err
		}
	}
	if trailer {
		var fields []Field
		for _, name := range w.trailers {
			fields = appendFields(fields, name, w.header[name])
		}
		w.v.s.Trailer(b, fields)
	}
	return len(p), nil
}

// sendHeader reports whether that is all.
func (w *answer) sendHeader(b *Batch, p []byte) (all bool) {
	body := bodyAllowed(w.status)
	list := lists.Get().(*[]Field)
	fields := append((*list)[:0], Field{Name: ":status", Value: statusText(w.status)})
	for name, values := range w.snap {
		switch name {
		case "Trailer":
			for _, list := range values {
				for trailer := range strings.SplitSeq(list, ",") {
					w.announce(strings.Trim(trailer, " \t"))
				}
			}
		case "Connection":
			if len(values) > 0 && values[0] == "close" { // the last answers of this connection, as with HTTP/1.1
				defer w.v.s.c.Shutdown()
			}
			continue
		case "Content-Length":
			if len(values) > 1 {
				values = values[:1]
			}
		}
		fields = appendFields(fields, name, values)
	}
	if !hasKey(w.snap, "Content-Length") && w.done && body && (len(p) > 0 || !w.head) {
		fields = append(fields, Field{Name: "content-length", Value: strconv.Itoa(len(p))})
	}
	if !hasKey(w.snap, "Content-Type") && w.snap.Get("Content-Encoding") == "" && body && len(p) > 0 {
		fields = append(fields, Field{Name: "content-type", Value: http.DetectContentType(p)})
	}
	if !hasKey(w.snap, "Date") {
		fields = append(fields, Field{Name: "date", Value: time.Now().UTC().Format(http.TimeFormat)})
	}
	slices.Sort(w.trailers)
	all = w.head || w.done && len(w.trailers) == 0 && len(p) == 0
	if all && !w.head && w.length > 0 && body {
		all = false // less than was declared: finish resets
	}
	w.v.mu.Lock()
	w.v.headed = true
	w.v.s.Header(b, fields, all)
	w.v.mu.Unlock()
	clear(fields)
	*list = fields[:0]
	lists.Put(list)
	return all
}

func (w *answer) announce(name string) {
	name = http.CanonicalHeaderKey(name)
	if httpguts.ValidTrailerHeader(name) && !slices.Contains(w.trailers, name) {
		w.trailers = append(w.trailers, name)
	}
}

// promote makes trailers of the fields with http.TrailerPrefix.
func (w *answer) promote() {
	for name, values := range w.header {
		if trailer, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			w.announce(trailer)
			w.header[http.CanonicalHeaderKey(trailer)] = values
		}
	}
	slices.Sort(w.trailers)
}

// finish sends the rest.
func (w *answer) finish() {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	if w.length > w.written && !w.head && bodyAllowed(w.status) {
		// The client would take half of it for the whole (RFC 9113 section 8.1.1).
		w.abandon()
		w.v.breakOff()
		return
	}
	w.done = true
	if w.bw.Buffered() > 0 {
		_ = w.bw.Flush()
	} else {
		_, _ = w.chunk(nil)
	}
	w.abandon()
}

// abandon gives back what the answer had.
func (w *answer) abandon() {
	w.done = true
	w.bw.Reset(nil)
	answerBuffers.Put(w.bw)
	w.bw = nil
}

// write sends a piece of the body, and waits while the client does not take it.
func (v *serving) write(b *Batch, p []byte, end bool) error {
	for {
		v.mu.Lock()
		if v.kept >= keepMost && v.err == nil {
			v.mu.Unlock()
			b.Flush()
			v.mu.Lock()
			for v.kept > keepMost/2 && v.err == nil {
				v.writable.Wait()
			}
		}
		n, err := min(len(p), keepMost-v.kept), v.err
		v.mu.Unlock()
		if err != nil {
			return err
		}
		sent, err := v.s.Write(b, p[:n], end && n == len(p))
		if err != nil {
			v.fail(err)
			return err
		}
		v.mu.Lock()
		v.kept += n - sent
		v.mu.Unlock()
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func statusText(code int) string {
	switch code {
	case http.StatusOK:
		return "200"
	case http.StatusCreated:
		return "201"
	case http.StatusNotFound:
		return "404"
	}
	return strconv.Itoa(code)
}

func hasKey(h http.Header, name string) bool { _, ok := h[name]; return ok }

func typeName(v any) string { return fmt.Sprintf("%T", v) }

// appendFields leaves out what may not be in HTTP/2.
func appendFields(fields []Field, name string, values []string) []Field {
	name = lower(name)
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return fields
	}
	if !validName(name) {
		return fields
	}
	for _, value := range values {
		if httpguts.ValidHeaderFieldValue(value) {
			fields = append(fields, Field{Name: name, Value: value, Sensitive: name == "set-cookie"})
		}
	}
	return fields
}

// Names that come with nearly every request or answer: canonical and lower case.
var toCanonical, toLower = func() (map[string]string, map[string]string) {
	c, l := make(map[string]string), make(map[string]string)
	for _, name := range []string{
		"accept", "accept-encoding", "accept-language", "audit-id", "authorization", "cache-control", "connection", "content-encoding",
		"content-length", "content-type", "cookie", "date", "etag", "expect", "host", "if-match", "if-none-match", "impersonate-group", "impersonate-user",
		"kubectl-command", "kubectl-session", "last-modified", "location", "retry-after", "set-cookie", "strict-transport-security", "te", "trailer", "traceparent",
		"transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning", "www-authenticate", "x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid",
	} {
		c[name] = http.CanonicalHeaderKey(name)
		l[c[name]] = name
	}
	return c, l
}()

func canonical(name string) string {
	if c, ok := toCanonical[name]; ok {
		return c
	}
	return http.CanonicalHeaderKey(name)
}

func lower(name string) string {
	if l, ok := toLower[name]; ok {
		return l
	}
	return strings.ToLower(name)
}
