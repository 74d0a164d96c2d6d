package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"time"
)

// h1client is the load generator's HTTP/1.1 connection, for the proxies that
// speak nothing else. One goroutine uses it.
type h1client struct {
	conn net.Conn
	in   *bufio.Reader
	host string

	prepared *request
	bytes    []byte
}

func newH1Client(conn net.Conn, host string) *h1client {
	return &h1client{conn: conn, in: bufio.NewReaderSize(conn, 32<<10), host: host}
}

func (c *h1client) close() { _ = c.conn.Close() }

// write sends a request.
func (c *h1client) write(q *request) error {
	if c.prepared != q {
		c.prepared = q
		c.bytes = fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nAccept: application/json\r\n", q.method, q.path, c.host, userAgent)
		if q.body != nil {
			c.bytes = fmt.Appendf(c.bytes, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(q.body))
		}
		c.bytes = append(append(c.bytes, "\r\n"...), q.body...)
	}
	_, err := c.conn.Write(c.bytes)
	return err
}

// head is the beginning of an HTTP/1.1 answer.
type head struct {
	status  int
	length  int // -1: not said
	chunked bool
}

func (c *h1client) readHead() (head, error) {
	h := head{length: -1}
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return h, fmt.Errorf("no HTTP/1.1 answer: %.60q", line)
	}
	if h.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return h, err
	}
	for {
		name, value, err := readField(c.in)
		if err != nil || name == nil {
			return h, err
		}
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if h.length, err = strconv.Atoi(string(value)); err != nil {
				return h, err
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			h.chunked = true
		}
	}
}

// readField reads one field line; no name is the end of the section. Both are
// good until the next read.
func readField(r *bufio.Reader) (name, value []byte, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return nil, nil, err
	}
	line = bytes.TrimRight(line, "\r\n")
	if len(line) == 0 {
		return nil, nil, nil
	}
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok {
		return nil, nil, fmt.Errorf("no field line: %.60q", line)
	}
	return name, bytes.TrimSpace(value), nil
}

// answer reads an answer to its end.
func (c *h1client) answer(q *request) error {
	h, err := c.readHead()
	if err != nil {
		return err
	}
	if h.status != 200 {
		text, _ := c.in.Peek(min(c.in.Buffered(), 300))
		return fmt.Errorf("answer %d, want 200: %q", h.status, text)
	}
	n := h.length
	switch {
	case h.chunked:
		m, err := io.Copy(io.Discard, httputil.NewChunkedReader(c.in))
		if err != nil {
			return err
		}
		// The section of trailers, which is empty here.
		if name, _, err := readField(c.in); err != nil || name != nil {
			return errors.Join(errors.New("an answer with trailers"), err)
		}
		n = int(m)
	case n >= 0:
		if _, err := c.in.Discard(n); err != nil {
			return err
		}
	default:
		return errors.New("an answer of unknown length")
	}
	if n != q.size {
		return fmt.Errorf("answer of %d bytes, want %d", n, q.size)
	}
	return nil
}

// drive makes one request after the other until the end, at least one. HTTP/1.1
// has only one in flight on a connection.
func (c *h1client) drive(q *request, n int, end time.Time, took []int64) ([]int64, error) {
	if n != 1 {
		return took, fmt.Errorf("%d in flight on one HTTP/1.1 connection", n)
	}
	if err := c.conn.SetDeadline(end.Add(patience)); err != nil {
		return took, err
	}
	for until := end.UnixNano(); ; {
		begin := nanos()
		if err := c.write(q); err != nil {
			return took, err
		}
		if err := c.answer(q); err != nil {
			return took, err
		}
		now := nanos()
		took = append(took, now-begin)
		if now >= until {
			return took, nil
		}
	}
}
