package daemon

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/frame"
)

// A stream of before a reload is one that the end of the proxy waits for, and figures
// do not go back.
func TestStreamOverReload(t *testing.T) {
	api, c, p := playground(t)
	joan := filepath.Join(filepath.Dir(c.Key), "joan.pem")
	writePair(t, api, joan, "joan")
	c.DrainTimeout = patience
	r := begin(t, c, Options{
		ID: "serve", Life: lifeServe, Fixed: true, Places: p, Loopback: []string{"127.0.0.1:0"},
		Reload: func() (*config.Config, error) {
			return changed(c, func(c *config.Config) { c.Key, c.Cert = joan, joan }), nil
		},
	})
	ca, cert, key, err := r.d.LoopbackSession()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	conn, err := tls.Dial("tcp", r.d.Loopback(), &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET /api/v1/namespaces/default/pods/web/exec?command=cat HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"+
		"Upgrade: websocket\r\nSec-WebSocket-Key: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n", frame.NewKey(), apiserver.ExecProtocol); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(res, err)
	}
	first := r.d.front.Load()
	if err := r.d.Reload("test"); err != nil || r.d.front.Load() == first {
		t.Fatal("not reloaded", err)
	}
	if s := r.d.status(); r.d.upgrades() != 1 || s.Requests != 1 || s.InFlight != 1 || s.Identity != "joan" {
		t.Errorf("%d streams, status %+v", r.d.upgrades(), s)
	}
	r.cancel()
	echo := func(text string) {
		t.Helper()
		if err := frame.Write(conn, frame.Binary, []byte("\x00"+text), true); err != nil {
			t.Fatal(err)
		}
		for {
			_, msg, _, err := frame.Read(in)
			if err != nil {
				t.Fatalf("the stream was cut: %v", err)
			}
			if string(msg) == "\x01"+text {
				return
			}
		}
	}
	for r.d.life.touch() { // until the end has begun
		time.Sleep(time.Millisecond)
	}
	for range 20 { // it goes on for as long as drain looks at it now and then
		echo("one")
		time.Sleep(10 * time.Millisecond)
	}
	_ = conn.Close()
	if took := r.gone(t); took > patience/2 {
		t.Errorf("it ended %v after the stream", took)
	}
	if s := r.d.status(); s.Requests != 1 || s.InFlight != 0 || len(r.d.former) != 0 {
		t.Errorf("after the end: %+v", s)
	}
}

// A watch that came in the moment before a reload begins, and ends to begin anew: it is
// not told that anything shuts down.
func TestWatchDuringReload(t *testing.T) {
	api, c, p := playground(t)
	joan := filepath.Join(filepath.Dir(c.Key), "joan.pem")
	writePair(t, api, joan, "joan")
	r := begin(t, c, Options{
		ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{p.Socket("serve")},
		Reload: func() (*config.Config, error) {
			return changed(c, func(c *config.Config) { c.Key, c.Cert = joan, joan }), nil
		},
	})
	_, cert, key, err := r.d.LoopbackSession()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	f := r.d.enter()
	if err := r.d.Reload("test"); err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodGet, "https://localhost/api/v1/namespaces/default/pods?watch=true", nil)
	req.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{pair.Leaf}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := httptest.NewRecorder()
	func() {
		defer func() { _ = recover() }() // how net/http cuts an answer
		f.unix.ServeHTTP(w, req.WithContext(ctx))
	}()
	f.leave()
	if w.Code != http.StatusOK || ctx.Err() != nil {
		t.Errorf("%d %s, %v", w.Code, w.Body, ctx.Err())
	}
}
