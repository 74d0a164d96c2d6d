package h2

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

// request makes the http.Request.
func (v *serving) request(fields []Field, o *ServeOptions) (r *http.Request) {
	var method, authority, path string
	header := make(http.Header, len(fields))
	values := make([]string, 0, len(fields))
	for i := range fields {
		f := &fields[i]
		if f.Name[0] == ':' {
			switch f.Name {
			case ":method":
				method = f.Value
			case ":authority":
				authority = f.Value
			case ":path":
				path = f.Value
			}
			continue
		}
		name := canonical(f.Name)
		if old := header[name]; old != nil {
			header[name] = append(old, f.Value)
			continue
		}
		values = append(values, f.Value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if authority == "" {
		authority = header.Get("Host")
	}
	v.expect = httpguts.HeaderValuesContainsToken(header["Expect"], "100-continue")
	if v.expect {
		delete(header, "Expect")
	}
	if crumbs := header["Cookie"]; len(crumbs) > 1 { // RFC 9113 section 8.2.3
		header["Cookie"] = []string{strings.Join(crumbs, "; ")}
	}
	for _, list := range header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			switch name = http.CanonicalHeaderKey(strings.Trim(name, " \t")); name {
			case "Transfer-Encoding", "Trailer", "Content-Length":
			default:
				if v.trailer == nil {
					v.trailer = make(http.Header)
				}
				v.trailer[name] = nil
			}
		}
	}
	delete(header, "Trailer")

	u, uri := &url.URL{Host: authority}, authority
	if method != "CONNECT" {
		var err error
		uri = path
		if u, err = url.ParseRequestURI(path); err != nil {
			u = new(url.URL)
			u.Opaque, u.RawQuery, _ = strings.Cut(path, "?")
		}
	}

	base := o.Context
	if base == nil {
		base = context.Background()
	}
	var ctx context.Context
	ctx, v.cancel = context.WithCancel(base)
	r = (&http.Request{
		Method: method, URL: u, RequestURI: uri, Host: authority,
		Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: header, Trailer: v.trailer, Body: http.NoBody,
		RemoteAddr: o.RemoteAddr, TLS: v.s.c.ConnectionState(),
	}).WithContext(ctx)
	if r.RemoteAddr == "" {
		r.RemoteAddr = v.s.c.tls.RemoteAddr().String()
	}
	if v.gotAll && len(o.Body) == 0 && o.Trailer == nil {
		return r
	}
	r.Body = (*requestBody)(v)
	if lengths := header["Content-Length"]; len(lengths) == 0 {
		r.ContentLength = -1
	} else if n, err := strconv.ParseUint(lengths[0], 10, 63); err == nil {
		r.ContentLength = int64(n)
	}
	_, _ = v.in.Write(o.Body)
	v.free, v.came = len(o.Body), append([]Field(nil), o.Trailer...)
	if v.gotAll {
		v.readErr = io.EOF
	}
	return r
}

// requestBody is the http.Request.Body. Read and Close may be called at the same time.
type requestBody serving

func (v *requestBody) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	v.mu.Lock()
	if v.expect {
		v.expect = false
		if !v.headed && v.in.size == 0 && v.readErr == nil {
			b := batches.Get().(*Batch)
			v.s.Header(b, []Field{{Name: ":status", Value: "100"}}, false)
			v.mu.Unlock()
			b.Flush()
			batches.Put(b)
			v.mu.Lock()
		}
	}
	for v.in.size == 0 && v.readErr == nil {
		v.readable.Wait()
	}
	for len(p) > n && v.in.size > 0 {
		k := copy(p[n:], v.in.front(len(p)-n))
		v.in.drop(k)
		n += k
	}
	free := min(n, v.free)
	v.free -= free
	if n == 0 {
		err = v.readErr
		if err == io.EOF && v.came != nil {
			for _, f := range v.came {
				if name := canonical(f.Name); hasKey(v.trailer, name) { // as net/http: only what was announced
					v.trailer[name] = append(v.trailer[name], f.Value)
				}
			}
			v.came = nil
		}
	}
	v.mu.Unlock()
	if n > free {
		v.s.Consumed(nil, n-free)
	}
	return n, err
}

func (v *requestBody) Close() error {
	v.mu.Lock()
	n := (*serving)(v).giveUp(http.ErrBodyReadAfterClose)
	v.mu.Unlock()
	v.s.drop(nil, n)
	return nil
}

// SetReadDeadline is http.ResponseController's. As with net/http, one that has
// passed is not undone.
func (w *answer) SetReadDeadline(t time.Time) error {
	w.v.deadline(&w.v.readTimer, t, w.v.readTimedOut)
	return nil
}

// SetWriteDeadline is http.ResponseController's. When it passes, the stream is reset.
func (w *answer) SetWriteDeadline(t time.Time) error {
	w.v.deadline(&w.v.writeTimer, t, w.v.writeTimedOut)
	return nil
}

func (v *serving) deadline(timer **time.Timer, t time.Time, passed func()) {
	v.mu.Lock()
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
	left := time.Until(t)
	if !t.IsZero() && left > 0 {
		*timer = time.AfterFunc(left, passed)
	}
	v.mu.Unlock()
	if !t.IsZero() && left <= 0 {
		passed()
	}
}

func (v *serving) readTimedOut() {
	v.mu.Lock()
	if v.readErr == nil {
		v.readErr = os.ErrDeadlineExceeded
	}
	v.readable.Broadcast()
	v.mu.Unlock()
}

func (v *serving) writeTimedOut() {
	v.s.Reset(nil, http2.ErrCodeInternal)
	v.fail(os.ErrDeadlineExceeded)
}
