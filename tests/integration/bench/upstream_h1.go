package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
)

// h1watch is an HTTP/1.1 connection with a watch on it.
type h1watch struct {
	mu   sync.Mutex
	conn net.Conn
}

func (w *h1watch) event() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintf(w.conn, "%x\r\n%s\r\n", len(bookmark), bookmark)
}

// serveH1 answers on one HTTP/1.1 connection, for proxies that do not speak
// HTTP/2 to their servers.
func serveH1(a *api, conn net.Conn, certified bool) {
	in := bufio.NewReaderSize(conn, 32<<10)
	var out []byte
	for {
		h, body, err := readRequest(in)
		if err != nil {
			return
		}
		n, err := io.Copy(io.Discard, body)
		if err != nil {
			return
		}
		if _, chunked := body.(*io.LimitedReader); !chunked {
			if name, _, err := readField(in); err != nil || name != nil {
				return
			}
		}
		r := a.answer(&h, certified, int(n))
		out = fmt.Appendf(out[:0], "HTTP/1.1 %d %s\r\nAudit-Id: %s\r\nCache-Control: %s\r\nContent-Type: application/json\r\nDate: %s\r\n",
			r.status, http.StatusText(r.status), auditID, cacheControl, dateNow())
		if r.watch {
			watch(a, conn, in, fmt.Appendf(out, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(r.body), r.body))
			return
		}
		out = append(fmt.Appendf(out, "Content-Length: %d\r\n\r\n", len(r.body)), r.body...)
		if _, err := conn.Write(out); err != nil {
			return
		}
		if r.event {
			a.watchers.event()
		}
	}
}

// watch sends the first event and lets others come until the client leaves.
func watch(a *api, conn net.Conn, in *bufio.Reader, first []byte) {
	w := &h1watch{conn: conn}
	w.mu.Lock()
	a.watchers.add(w)
	_, err := conn.Write(first)
	w.mu.Unlock()
	if err == nil {
		_, _ = in.ReadByte()
	}
	a.watchers.remove(w)
}

// readRequest reads the head of a request. The body is a *io.LimitedReader
// where its length was said.
func readRequest(in *bufio.Reader) (h requestHead, body io.Reader, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return h, nil, err
	}
	parts := strings.Fields(string(line))
	if len(parts) != 3 {
		return h, nil, errors.New("no request line")
	}
	h.method, h.path, h.length = parts[0], parts[1], -1
	chunked := false
	for {
		name, value, err := readField(in)
		if err != nil {
			return h, nil, err
		}
		if name == nil {
			break
		}
		lower := strings.ToLower(string(name))
		h.set(lower, string(value))
		chunked = chunked || lower == "transfer-encoding"
	}
	if chunked {
		return h, httputil.NewChunkedReader(in), nil
	}
	return h, io.LimitReader(in, int64(max(h.length, 0))), nil
}
