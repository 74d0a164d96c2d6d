//go:build linux

package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
)

// hopProxy is a forward proxy, CONNECT at address and SOCKS5 at socks. It knows
// one name that nobody else does.
type hopProxy struct {
	address, socks string
	connections    atomic.Int64
}

func newHopProxy(t *testing.T) *hopProxy {
	t.Helper()
	p := &hopProxy{}
	p.address = p.listen(t, p.connect)
	p.socks = p.listen(t, p.socks5)
	return p
}

func (p *hopProxy) listen(t *testing.T, serve func(net.Conn, *bufio.Reader) error) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_ = serve(conn, bufio.NewReader(conn))
			}()
		}
	}()
	return l.Addr().String()
}

func (p *hopProxy) connect(conn net.Conn, r *bufio.Reader) error {
	req, err := http.ReadRequest(r)
	if err != nil {
		return err
	}
	if req.Method != http.MethodConnect {
		_, err := io.WriteString(conn, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
		return err
	}
	return p.relay(conn, r, req.Host, "HTTP/1.1 200 Connection established\r\n\r\n")
}

// socks5 is RFC 1928: no authentication, CONNECT to a name or an IPv4 address.
func (p *hopProxy) socks5(conn net.Conn, r *bufio.Reader) error {
	head := make([]byte, 2)
	if _, err := io.ReadFull(r, head); err != nil {
		return err
	}
	if _, err := r.Discard(int(head[1])); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{5, 0}); err != nil {
		return err
	}
	req := make([]byte, 4)
	if _, err := io.ReadFull(r, req); err != nil {
		return err
	}
	n := 4
	if req[3] == 3 {
		b, err := r.ReadByte()
		if err != nil {
			return err
		}
		n = int(b)
	}
	address := make([]byte, n+2)
	if _, err := io.ReadFull(r, address); err != nil {
		return err
	}
	host := string(address[:n])
	if req[3] == 1 {
		host = net.IP(address[:n]).String()
	}
	port := strconv.Itoa(int(address[n])<<8 | int(address[n+1]))
	return p.relay(conn, r, net.JoinHostPort(host, port), "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
}

// relay dials address, says answer, and copies both ways until one ends.
func (p *hopProxy) relay(conn net.Conn, r *bufio.Reader, address, answer string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if host == cluster.Name {
		host = "127.0.0.1"
	}
	out, err := net.Dial("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return fmt.Errorf("dialling for a client: %w", err)
	}
	defer func() { _ = out.Close() }()
	p.connections.Add(1)
	if _, err := io.WriteString(conn, answer); err != nil {
		return err
	}
	done := make(chan struct{}, 2)
	copying := func(dst io.Writer, src io.Reader) {
		_, _ = io.Copy(dst, src)
		done <- struct{}{}
	}
	go copying(out, r)
	go copying(conn, out)
	<-done
	return nil
}
