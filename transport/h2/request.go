package h2

import (
	"cmp"
	"slices"
	"strings"

	"golang.org/x/net/http2"
)

// clientHeader is a complete header block that a client has sent.
func (c *Conn) clientHeader(b *Batch) error {
	k := &c.block
	c.mu.Lock()
	s := c.streams[k.id]
	switch {
	case s != nil:
		c.mu.Unlock()
		return c.trailerBlock(b, s)
	case k.id%2 == 0:
		c.mu.Unlock()
		return protocolError("a client's stream has an even identifier")
	case k.id <= c.lastID:
		ours := slices.Contains(c.localResets[:], k.id)
		c.mu.Unlock()
		if ours {
			return nil
		}
		return &ConnError{Code: http2.ErrCodeStreamClosed, Reason: "a header on a stream that has ended"}
	case k.id > c.goAwayLast:
		c.lastID = k.id // it exists: what comes on it is ignored, too
		c.mu.Unlock()
		return nil
	}
	c.lastID = k.id
	if len(c.streams) >= int(c.o.MaxStreams) {
		_ = c.fw.WriteRSTStream(k.id, http2.ErrCodeRefusedStream)
		c.noteReset(k.id)
		c.release(b)
		return c.spend(&c.control, "other")
	}
	problem := ""
	switch {
	case k.self:
		problem = "it depends on itself"
	case !k.over:
		problem = check(k.fields, request)
	}
	if problem != "" {
		_ = c.fw.WriteRSTStream(k.id, http2.ErrCodeProtocol)
		c.noteReset(k.id)
		c.release(b)
		return c.spend(&c.control, "header")
	}
	s = c.newStream(k.id, nil)
	s.heard = true
	s.length = contentLength(k.fields)
	s.gotAll = k.end
	if k.over {
		s.begun = true
		c.writeHeader(k.id, []Field{{Name: ":status", Value: "431"}, {Name: "content-length", Value: "0"}}, true)
		c.said(s)
		if !k.end {
			c.reset(s, http2.ErrCodeNo)
		}
		c.release(b)
		return c.spend(&c.control, "header")
	}
	wrong := k.end && s.length > 0
	c.mu.Unlock()
	if wrong {
		c.streamError(b, k.id, http2.ErrCodeProtocol, "the body has not the length that was announced")
		return nil
	}
	c.o.Begin(b, s, k.fields, k.end)
	return nil
}

// Attach says who gets what comes on a stream. Options.Begin calls it, before it does
// anything else with the stream; what comes on a stream without one is thrown away.
func (s *Stream) Attach(r Receiver) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.recv = r
}

func (c *Conn) newStream(id uint32, r Receiver) *Stream {
	s := &Stream{c: c, id: id, recv: r, sendWin: c.peerWindow, recvWin: int64(c.o.StreamWindow), window: int64(c.o.StreamWindow), length: -1}
	c.streams[id] = s
	return s
}

// trailerBlock is a header block on a stream that has had one.
func (c *Conn) trailerBlock(b *Batch, s *Stream) error {
	k := &c.block
	problem, code := "", http2.ErrCodeProtocol
	c.mu.Lock()
	switch {
	case s.gotAll:
		problem, code = "a header after the end of the stream", http2.ErrCodeStreamClosed
	case !k.end:
		problem = "a second header that does not end the stream"
	case k.over:
		problem = "the trailer is too large"
	case k.self:
		problem = "it depends on itself"
	case s.length >= 0 && s.got != s.length:
		problem = "the body has not the length that was announced"
	default:
		what := trailer
		if !c.server {
			what = responseTrailer
		}
		problem = check(k.fields, what)
	}
	if problem != "" {
		c.mu.Unlock()
		c.streamError(b, s.id, code, problem)
		return nil
	}
	c.heardAll(s)
	recv := s.recv
	c.mu.Unlock()
	if recv != nil {
		recv.Trailer(b, k.fields)
	}
	return nil
}

// maxInformed is how many informational answers one request may have: they cost time only.
const maxInformed = 100

// serverHeader is a complete header block that a server has sent.
func (c *Conn) serverHeader(b *Batch) error {
	k := &c.block
	c.mu.Lock()
	s := c.streams[k.id]
	if s == nil {
		idle := c.idle(k.id)
		c.mu.Unlock()
		if idle {
			return protocolError("a header on a stream that does not exist")
		}
		return c.closedStream(b, k.id)
	}
	if s.heard {
		c.mu.Unlock()
		return c.trailerBlock(b, s)
	}
	c.mu.Unlock()
	problem := "the header is too large"
	if !k.over {
		problem = check(k.fields, response)
	}
	var status string
	if problem == "" {
		status = get(k.fields, ":status")
		if !isDigits(status) || status < "100" || status == "101" || status[0] == '1' && k.end {
			problem = "the status is none that may stand here"
		}
	}
	if problem != "" {
		c.streamError(b, k.id, http2.ErrCodeProtocol, problem)
		return nil
	}
	if status[0] == '1' {
		if s.informed++; s.informed == maxInformed {
			c.streamError(b, k.id, http2.ErrCodeEnhanceYourCalm, "too many informational answers")
		}
		return nil
	}
	fields := k.fields // ":status" first: it is the only pseudo field of an answer
	length := contentLength(fields)
	wrong := false
	c.mu.Lock()
	if s.noBody || status == "304" || status == "204" {
		length, s.noBody = -1, true
	}
	if wrong = k.end && length > 0; !wrong {
		s.heard, s.length = true, length
		if k.end {
			c.heardAll(s)
		}
	}
	c.mu.Unlock()
	if wrong {
		c.streamError(b, k.id, http2.ErrCodeProtocol, "the body has not the length that was announced")
		return nil
	}
	s.recv.Header(b, fields, k.end)
	return nil
}

// Reserve takes one of the streams that the server allows, for Open. It reports
// false where there is none, or the connection takes no more.
func (c *Conn) Reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.takes() {
		return false
	}
	c.reserved++
	return true
}

// Release gives back what Reserve took.
func (c *Conn) Release() {
	c.mu.Lock()
	c.reserved--
	c.quietLocked()
	c.mu.Unlock()
}

// Open sends a request on the stream that Reserve took. end says that it has no
// body. The error wraps ErrUnprocessed: nothing was sent.
func (c *Conn) Open(b *Batch, fields []Field, end bool, r Receiver) (*Stream, error) {
	c.mu.Lock()
	c.reserved--
	if c.err != nil || c.writeErr != nil || c.peerGoAway || c.lastID+2 > maxStreamID {
		err := cmp.Or(c.err, c.writeErr, ErrRetired)
		c.quietLocked()
		c.mu.Unlock()
		return nil, &notProcessed{cause: err, unsent: true}
	}
	c.lastID += 2
	if c.lastID >= maxStreamID-2 {
		c.retired = true
	}
	s := c.newStream(c.lastID, r)
	s.begun = true
	s.noBody = strings.EqualFold(get(fields, ":method"), "HEAD")
	c.writeHeader(s.id, fields, end)
	if end {
		s.saidAll = true
	}
	retired := c.retired
	c.release(b)
	if retired {
		c.tellRetired()
	}
	return s, nil
}
