package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
	"time"
)

// halfOpenTime is how long the other direction of an upgraded connection may
// stay silent when one has ended. It tells a client that is gone from one that
// has only said all it had to say.
const halfOpenTime = 30 * time.Second

// upgradeProtocol gives the protocol that r asks for, as spelled, if it is one
// that Kubernetes uses. Others, h2c for one, are treated as if not asked for: a
// server may ignore Upgrade (RFC 9110 section 7.8).
func upgradeProtocol(r *http.Request) string {
	if r.ProtoMajor != 1 || r.ProtoMinor < 1 || !hasToken(r.Header["Connection"], "upgrade") {
		return ""
	}
	v := r.Header["Upgrade"]
	if len(v) != 1 {
		return ""
	}
	name := textproto.TrimString(v[0])
	if strings.EqualFold(name, "websocket") || strings.EqualFold(name, "SPDY/3.1") {
		return name
	}
	return ""
}

// switchProtocols sends the handshake over a connection of its own and, if the
// server agrees, joins both connections.
func (x *exchange) switchProtocols() error {
	rt := x.way().upgrade
	if rt == nil {
		return &refusal{code: http.StatusNotImplemented, reason: ReasonNotImplemented, hangUp: true,
			message: "execproxy: this proxy has no way out for upgraded connections (exec, attach, port-forward)"}
	}
	if x.r.ContentLength != 0 {
		return &refusal{code: http.StatusBadRequest, reason: ReasonBadRequest, hangUp: true,
			message: "execproxy: a request that upgrades its connection must not have a body"}
	}
	res, err := x.send(rt)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		if res.StatusCode < 200 || res.StatusCode > 999 {
			return errors.New("status code out of range")
		}
		// What the client may have sent behind the handshake is no request.
		x.w.Header().Set("Connection", "close")
		x.respond(res)
		return nil
	}
	server, ok := res.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(textproto.TrimString(res.Header.Get("Upgrade")), x.upgrade) {
		return errors.New("the server switched to a protocol that was not asked for")
	}
	x.log(res.StatusCode)
	return x.join(res, server)
}

// join answers 101 and passes bytes until both sides have ended.
func (x *exchange) join(res *http.Response, server io.ReadWriteCloser) error {
	client, early, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return fmt.Errorf("taking over the client's connection: %w", err)
	}
	p := x.p
	defer client.Close()
	cut := func() { hangUp(client); hangUp(server) }
	if !p.flights.also(&x.flight, cut) {
		cut()
		return nil
	}
	p.count.upgrades.Add(1)
	p.count.openUpgrades.Add(1)
	defer p.count.openUpgrades.Add(-1)

	if err := writeSwitching(client, res); err != nil {
		return nil // hijacked: there is nobody left to answer
	}
	t := &tunnel{buffers: p.buffers}
	var both sync.WaitGroup
	both.Go(func() { t.pass(server, &earlyReader{early.Reader, client}, cut) })
	both.Go(func() { t.pass(client, server, cut) })
	both.Wait()
	t.stop()
	p.log.LogAttrs(x.ctx, slog.LevelDebug, "upgraded connection ended", slog.String("protocol", x.upgrade))
	return nil
}

// writeSwitching writes the server's 101, all of its fields kept.
func writeSwitching(w io.Writer, res *http.Response) error {
	head := bufio.NewWriterSize(w, smallBuffer)
	text := res.Status
	if text == "" {
		text = "101 Switching Protocols"
	}
	res.Header.Del(ErrorHeader)
	_, _ = fmt.Fprintf(head, "HTTP/1.1 %s\r\n", text)
	_ = res.Header.Write(head)
	_, _ = head.WriteString("\r\n")
	return head.Flush()
}

// earlyReader first gives what the client sent before the 101.
type earlyReader struct {
	early *bufio.Reader
	conn  io.Reader
}

func (r *earlyReader) Read(p []byte) (int, error) {
	if r.early != nil {
		if n := r.early.Buffered(); n > 0 {
			return r.early.Read(p[:min(n, len(p))])
		}
		r.early = nil
	}
	return r.conn.Read(p)
}

// tunnel is an upgraded connection.
type tunnel struct {
	buffers *buffers

	mu      sync.Mutex
	ended   int         // directions that have
	silence *time.Timer // runs while one has, and not the other
}

// pass copies one direction, and ends it on the other side when it ends here.
func (t *tunnel) pass(dst io.Writer, src io.Reader, cut func()) {
	_, err := t.buffers.relay(dst, src, false, t.heard)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended++
	if err != nil || t.ended == 2 {
		cut() // an error is the end of both
		return
	}
	half, ok := dst.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		cut()
		return
	}
	t.silence = time.AfterFunc(halfOpenTime, cut)
}

// heard is called for every piece that was passed on.
func (t *tunnel) heard() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.silence != nil {
		t.silence.Reset(halfOpenTime)
	}
	return nil
}

func (t *tunnel) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.silence != nil {
		t.silence.Stop()
	}
}

// hangUp closes c at once: tls.Conn.Close may wait for a peer that does not
// read, to tell it goodbye.
func hangUp(c io.Closer) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		_ = t.NetConn().Close()
		return
	}
	_ = c.Close()
}
