package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"

	"github.com/execproxy/execproxy/transport/h2"
)

// responseNames is responsePolicy as HTTP/2 spells it. Trailer is passed on there, as what
// it announces is.
var responseNames = func() (names []string) {
	for _, name := range responsePolicy {
		if name != "Trailer" {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}()

var answers = sync.Pool{New: func() any { return new([]h2.Field) }}

// serverSide is the passage as the server's stream sees it: the answer comes in here.
type serverSide passage

// Header implements h2.Receiver.
func (s *serverSide) Header(b *h2.Batch, fields []h2.Field, end bool) {
	x := (*passage)(s)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	p, status := x.p, fields[0].Value
	if x.signed && p.refused != nil && (status == "401" || status == "403") && x.refused(status, fields) && x.again(b, attempts-1) { // once
		x.up.Reset(b, http2.ErrCodeCancel) // the rest of it is nobody's
		return
	}
	if p.log.Enabled(context.Background(), slog.LevelDebug) {
		code, _ := strconv.Atoi(status)
		p.log.Debug("request", slog.String("method", x.request.method), slog.String("path", x.request.target.path), slog.Int("code", code), slog.Duration("took", time.Since(x.begun)))
	}
	if x.request != nil {
		x.request.free()
		x.request = nil
	}
	out := answers.Get().(*[]h2.Field)
	*out = responseFields(*out, fields)
	x.down.Header(b, *out, end)
	clear(*out)
	*out = (*out)[:0]
	answers.Put(out)
	if end {
		x.answered(b)
	}
}

// responseFields is responseHeader for fields.
func responseFields(out, fields []h2.Field) []h2.Field {
	var hidden []string
	lengths := 0
	for _, f := range fields {
		switch {
		case f.Name == "connection":
			for token := range strings.SplitSeq(f.Value, ",") {
				hidden = append(hidden, strings.ToLower(strings.Trim(token, " \t")))
			}
		case slices.Contains(responseNames, f.Name):
		case f.Name == "content-length":
			if lengths++; lengths > 1 || !isLength(f.Value) {
				hidden = append(hidden, f.Name)
			}
			f.Sensitive = true
			out = append(out, f)
		default:
			if f.Name == "audit-id" || f.Name == "set-cookie" { // another one each time, as the length: no use in a table
				f.Sensitive = true
			}
			out = append(out, f)
		}
	}
	if hidden == nil {
		return out
	}
	return slices.DeleteFunc(out, func(f h2.Field) bool { return f.Name[0] != ':' && slices.Contains(hidden, f.Name) })
}

// refused asks the signer whether a new signature may do.
func (x *passage) refused(status string, fields []h2.Field) bool {
	code, _ := strconv.Atoi(status)
	res := &http.Response{StatusCode: code, Header: make(http.Header, len(fields)), Body: http.NoBody}
	for _, f := range fields[1:] {
		res.Header.Add(f.Name, f.Value)
	}
	return x.p.refused(res, time.Since(x.begun))
}

// Data implements h2.Receiver.
func (s *serverSide) Data(b *h2.Batch, p []byte, end bool) {
	x := (*passage)(s)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		x.up.Consumed(b, len(p))
		return
	}
	sent, err := x.down.Write(b, p, end)
	if err != nil {
		x.p.log.Warn("the client does not read, and too much is kept for such: its stream is aborted", slog.String("server", x.p.server))
		x.up.Reset(b, http2.ErrCodeCancel)
		x.p.count.truncated.Add(1)
		x.finish(b)
		return
	}
	x.owed += len(p) - sent
	x.up.Consumed(b, sent)
	if end {
		x.answered(b)
	}
}

// Trailer implements h2.Receiver.
func (s *serverSide) Trailer(b *h2.Batch, fields []h2.Field) {
	x := (*passage)(s)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	out := slices.DeleteFunc(slices.Clone(fields), func(f h2.Field) bool {
		return slices.Contains(responseNames, f.Name) || !httpguts.ValidTrailerHeader(f.Name)
	})
	if len(out) == 0 {
		_, _ = x.down.Write(b, nil, true)
	} else {
		x.down.Trailer(b, out)
	}
	x.answered(b)
}

// answered notes that the answer is complete. It needs the lock.
func (x *passage) answered(b *h2.Batch) {
	x.ended = true
	x.settle(b)
}

// settle ends a passage whose answer is out. What the client still wants to send
// is not wanted any more (RFC 9113 section 8.1). It needs the lock.
func (x *passage) settle(b *h2.Batch) {
	if x.over || !x.ended {
		return
	}
	if !x.gotAll || x.unsaid > 0 {
		x.up.Reset(b, http2.ErrCodeCancel)
	}
	if x.owed > 0 {
		return
	}
	if !x.gotAll {
		x.down.Reset(b, http2.ErrCodeNo)
	}
	x.finish(b)
}

// Sent implements h2.Receiver: n bytes of the request have gone out.
func (s *serverSide) Sent(b *h2.Batch, n int) {
	x := (*passage)(s)
	x.mu.Lock()
	if x.over { // it was given back then
		x.mu.Unlock()
		return
	}
	x.unsaid -= n
	paid := min(n, x.prepaid)
	x.prepaid -= paid
	x.mu.Unlock()
	if n > paid {
		x.down.Consumed(b, n-paid)
	}
}

// Closed implements h2.Receiver: the server has reset the stream, or its connection is gone.
func (s *serverSide) Closed(b *h2.Batch, err error) {
	x := (*passage)(s)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	p := x.p
	switch {
	case x.ended: // it wants no more of the request
		return
	case x.request == nil:
		p.count.truncated.Add(1)
		p.log.Warn("response broke off, the client's stream is aborted", slog.String("server", p.server), slog.String("error", redactUpstream(err)))
		x.down.Reset(b, http2.ErrCodeInternal)
	case errors.Is(err, h2.ErrUnprocessed) && x.again(b, 1):
		return
	default:
		untouched := errors.Is(err, h2.ErrUnprocessed)
		if err = p.streams.StreamError(err); untouched || unsent(err) {
			err = errors.Join(errUnsent, err)
		}
		no := p.upstreamFault(err)
		p.log.Warn("upstream failed", slog.String("server", p.server), slog.String("reason", no.reason), slog.String("error", redactUpstream(err)))
		x.refuse(b, no)
	}
	x.finish(b)
}
