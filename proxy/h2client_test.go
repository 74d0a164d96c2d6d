package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

type ctx = context.Context

// h2client speaks HTTP/2 to the proxy frame by frame.
type h2client struct {
	t testing.TB
	*tls.Conn
	*http2.Framer
	enc    *hpack.Encoder
	encBuf bytes.Buffer
	id     uint32
}

func newH2Client(t testing.TB, f *front) *h2client {
	c := &h2client{t: t, Conn: f.dial(t, clientTLS("h2")), id: 1}
	if _, err := c.Conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	c.Framer = http2.NewFramer(c.Conn, c.Conn)
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.enc = hpack.NewEncoder(&c.encBuf)
	if err := c.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return c
}

// send writes a request head on a new stream and gives its id.
func (c *h2client) send(end bool, fields ...string) uint32 {
	c.t.Helper()
	c.encBuf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	id := c.id
	c.id += 2
	block, first := c.encBuf.Bytes(), true
	for first || len(block) > 0 {
		part := block[:min(len(block), 16<<10)]
		block = block[len(part):]
		var err error
		if first {
			err = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part, EndHeaders: len(block) == 0, EndStream: end})
		} else {
			err = c.WriteContinuation(id, len(block) == 0, part)
		}
		if err != nil {
			c.t.Fatal(err)
		}
		first = false
	}
	return id
}

// answer waits for the head of the answer on a stream: its status, or the
// name of the error that reset it.
func (c *h2client) answer(id uint32) string {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID == id {
				return f.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return f.ErrCode.String()
			}
		case *http2.GoAwayFrame:
			return "GOAWAY " + f.ErrCode.String()
		}
	}
}

func (c *h2client) get(path string) string {
	c.t.Helper()
	return c.answer(c.send(true, ":method", "GET", ":scheme", "https", ":authority", "x", ":path", path))
}
