package apiserver_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/frame"
)

// ask sends the handshake of an exec and returns the answer.
func ask(t *testing.T, s *apiserver.Server, protocol string) (*tls.Conn, *bufio.Reader, *http.Response, string) {
	t.Helper()
	config := s.ClientConfig(pair(t, s, "jane"))
	config.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", s.Address(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	key := frame.NewKey()
	if _, err := fmt.Fprintf(conn, "GET %s/web/exec?command=ls&command=-la&command=/tmp HTTP/1.1\r\nHost: %s\r\n"+
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n",
		pods, s.Address(), key, protocol); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, r, resp, key
}

func TestUpgrade(t *testing.T) {
	s := start(t, apiserver.Options{Pods: []string{"web"}})
	conn, r, resp, key := ask(t, s, "v4.channel.k8s.io, "+apiserver.ExecProtocol)
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Sec-WebSocket-Accept") != frame.Accept(key) ||
		resp.Header.Get("Sec-WebSocket-Protocol") != apiserver.ExecProtocol {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	expect := func(want string) {
		t.Helper()
		_, msg, masked, err := frame.Read(r)
		if err != nil || masked || string(msg) != want {
			t.Fatalf("message %q, masked %v, %v; want %q", msg, masked, err, want)
		}
	}
	expect("\x01ls -la /tmp\n")
	for _, line := range []string{"one", "two"} {
		if err := frame.Write(conn, frame.Binary, []byte("\x00"+line), true); err != nil {
			t.Fatal(err)
		}
		expect("\x01" + line)
	}
	if err := frame.Write(conn, frame.Close, []byte{0x03, 0xe8}, true); err != nil {
		t.Fatal(err)
	}
	expect("\x03" + `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	expect("\x03\xe8")
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("after the close: %v, want EOF", err)
	}
}

func TestUpgradeRefused(t *testing.T) {
	s := start(t, apiserver.Options{Pods: []string{"web"}})
	if _, _, resp, _ := ask(t, s, "v4.channel.k8s.io"); resp.StatusCode != http.StatusForbidden {
		t.Error(resp.Status)
	}
	// A client that does not mask is closed on (1002: protocol error).
	conn, r, _, _ := ask(t, s, apiserver.ExecProtocol)
	if _, _, _, err := frame.Read(r); err != nil {
		t.Fatal(err)
	}
	if err := frame.Write(conn, frame.Binary, []byte("\x00x"), false); err != nil {
		t.Fatal(err)
	}
	if op, msg, _, err := frame.Read(r); err != nil || op != frame.Close || string(msg) != "\x03\xea" {
		t.Errorf("op %d, %q, %v", op, msg, err)
	}
}

// Close cuts upgraded connections too; http.Server alone forgets them.
func TestCloseCutsUpgrades(t *testing.T) {
	s := start(t, apiserver.Options{Pods: []string{"web"}})
	_, r, _, _ := ask(t, s, apiserver.ExecProtocol)
	if _, _, _, err := frame.Read(r); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.ReadByte(); err == nil {
		t.Error("the connection is still open")
	}
}
