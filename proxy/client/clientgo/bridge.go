package clientgo

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/execproxy/execproxy/proxy/socket"
)

const (
	// introduction is how long a connection may take to say where it wants to go and who it
	// is; the time for the proxy to be started is not counted.
	introduction = 10 * time.Second
	// strangers is how many connections may be at that at once: any user of this machine
	// can make them.
	strangers = 64
	// headLimit is how long the head of CONNECT may be, in bytes.
	headLimit = 8 << 10
)

// A bridge takes streams on a loopback port and passes them on over the proxy's socket.
type bridge struct {
	e        *entry
	target   string // host:port that CONNECT may name
	url      *url.URL
	password string // what Proxy-Authorization must be
	ca       []byte // PEM
	pair     *socket.Pair
	clients  *socket.Authority
	tls      *tls.Config
	listener net.Listener

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	free   chan struct{} // places for strangers

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil: closed
}

func newBridge(e *entry) (*bridge, error) {
	server, err := serverURL(e.plugin.options.Cluster.Server)
	if err != nil {
		return nil, err
	}
	ours, err := socket.NewAuthority(socket.AuthorityOptions{Logger: e.r.log})
	if err != nil {
		return nil, err
	}
	if err := ours.CheckNames([]string{server.Hostname()}); err != nil {
		return nil, err
	}
	b := &bridge{e: e, target: authorityOf(server), ca: ours.CertificatePEM(), free: make(chan struct{}, strangers), conns: map[net.Conn]struct{}{}}
	// A rest.Config keeps its pair for as long as somebody has it, so that this pair ends with
	// the bridge and not by date: its authority's clock stands still.
	begin := time.Now()
	if b.clients, err = socket.NewAuthority(socket.AuthorityOptions{Clock: func() time.Time { return begin }}); err != nil {
		return nil, err
	}
	if b.pair, err = b.clients.ClientPair(); err != nil {
		return nil, err
	}
	b.tls = ours.ServerConfig([]string{server.Hostname()}, b.clients)
	b.tls.NextProtos = []string{"http/1.1"} // as no upgrade goes over HTTP/2
	if b.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		var err6 error
		if b.listener, err6 = net.Listen("tcp", "[::1]:0"); err6 != nil {
			return nil, fmt.Errorf("listening on a loopback port: %w", errors.Join(err, err6))
		}
	}
	const user = "stream"
	secret := rand.Text()
	b.password = "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+secret))
	b.url = &url.URL{Scheme: "http", Host: b.listener.Addr().String(), User: url.UserPassword(user, secret)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.tasks.Go(b.accept)
	return b, nil
}

// proxy is StreamConfig's Proxy: also for servers on loopback, which an environment's
// NO_PROXY or net/http leave out.
func (b *bridge) proxy(*http.Request) (*url.URL, error) {
	u := *b.url
	return &u, nil
}

// authorityOf is what CONNECT names for u (RFC 9110 section 9.3.6), in lower case.
func authorityOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// close cuts all streams.
func (b *bridge) close() error {
	b.cancel()
	err := b.listener.Close()
	b.mu.Lock()
	for c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
	b.mu.Unlock()
	b.tasks.Wait()
	return err
}

func (b *bridge) accept() {
	for {
		select {
		case b.free <- struct{}{}:
		case <-b.ctx.Done():
			return
		}
		conn, err := b.listener.Accept()
		if err != nil {
			<-b.free
			if b.ctx.Err() != nil {
				return
			}
			b.e.r.log.Warn("accepting a stream", "err", err)
			select { // out of descriptors, most likely
			case <-time.After(100 * time.Millisecond):
			case <-b.ctx.Done():
			}
			continue
		}
		if !b.track(conn) {
			_ = conn.Close()
			<-b.free
			return
		}
		b.tasks.Go(func() {
			known := sync.OnceFunc(func() { <-b.free })
			defer known()
			defer b.forget(conn)
			if err := b.serve(conn, known); err != nil {
				b.e.r.log.Debug("stream", "server", b.target, "err", err)
			}
		})
	}
}

func (b *bridge) track(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conns != nil {
		b.conns[c] = struct{}{}
	}
	return b.conns != nil
}

func (b *bridge) forget(c net.Conn) {
	b.mu.Lock()
	delete(b.conns, c)
	b.mu.Unlock()
	_ = c.Close()
}

// serve is one stream. It calls known when the client has shown that it may.
func (b *bridge) serve(conn net.Conn, known func()) error {
	if err := conn.SetDeadline(time.Now().Add(introduction)); err != nil {
		return err
	}
	if status, err := b.introduced(conn); err != nil {
		refuse(conn, status, http.StatusText(status))
		return err
	}
	known()
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	// Before the answer, so that it can say what is wrong: dialers pass on the status line.
	upstream, err := b.e.client.DialHTTP1Context(b.ctx, "tcp", b.target)
	if err != nil {
		if b.ctx.Err() == nil {
			b.e.r.o.Metrics.ExecProxyError()
		}
		err = b.e.plugin.explain(err)
		refuse(conn, http.StatusBadGateway, err.Error())
		return err
	}
	defer func() { _ = upstream.Close() }()
	if err := conn.SetDeadline(time.Now().Add(introduction)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return err
	}
	client := tls.Server(conn, b.tls)
	if err := client.HandshakeContext(b.ctx); err != nil {
		return err
	}
	if state := client.ConnectionState(); !b.clients.Verified(&state) {
		return errors.New("a client without the pair of StreamConfig")
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	splice(client, upstream)
	return nil
}

// introduced reads CONNECT and says whether its sender may go on, or with which status not.
func (b *bridge) introduced(conn io.Reader) (int, error) {
	r := bufio.NewReader(io.LimitReader(conn, headLimit))
	req, err := http.ReadRequest(r)
	switch {
	case err != nil:
		return http.StatusBadRequest, err
	case subtle.ConstantTimeCompare([]byte(req.Header.Get("Proxy-Authorization")), []byte(b.password)) != 1:
		return http.StatusProxyAuthRequired, errors.New("a client without the password of StreamConfig")
	case req.Method != http.MethodConnect:
		return http.StatusMethodNotAllowed, errors.New("not CONNECT")
	case strings.ToLower(req.Host) != b.target:
		return http.StatusForbidden, fmt.Errorf("CONNECT to another host than %s", b.target)
	case r.Buffered() > 0:
		return http.StatusBadRequest, errors.New("bytes behind CONNECT before its answer")
	}
	return 0, nil
}

// refuse answers CONNECT.
func refuse(conn net.Conn, status int, reason string) {
	reason = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, reason)
	_ = conn.SetWriteDeadline(time.Now().Add(introduction))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status, reason)
}

// A stream can be ended one way.
type stream interface {
	net.Conn
	CloseWrite() error
}

// splice passes bytes both ways until both have ended, or one of them broken.
func splice(client stream, upstream net.Conn) {
	up, ok := upstream.(stream)
	if !ok {
		return
	}
	pass := func(to, from stream) {
		if _, err := io.Copy(to, from); err != nil || to.CloseWrite() != nil {
			_, _ = to.Close(), from.Close()
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { pass(up, client) })
	pass(client, up)
	wg.Wait()
}
