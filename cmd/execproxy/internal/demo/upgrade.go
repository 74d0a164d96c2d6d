package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/frame"
)

// command is what the exec asks for: sorted, it would be another one.
var command = []string{"ls", "-la", "/tmp"}

// upgrade does what kubectl exec does over a HTTP/1.1 connection, and closes it: an upgrade to WebSocket, the command
// shown by the other side, a line in and out.
func upgrade(ctx context.Context, conn net.Conn, server *url.URL) (string, error) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	query := make([]string, 0, len(command)+2)
	for _, c := range command {
		query = append(query, "command="+url.QueryEscape(c))
	}
	query = append(query, "stdin=true", "stdout=true")
	path := podsPath + "/" + seeded + "/exec?" + strings.Join(query, "&")
	key := frame.NewKey()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n",
		path, server.Host, key, apiserver.ExecProtocol); err != nil {
		return "", fmt.Errorf("asking for the upgrade: %w", err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return "", fmt.Errorf("reading the answer to the upgrade: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = resp.Body.Close() }()
		return "", fmt.Errorf("upgrade: %s, want 101", told(resp))
	}
	if got := resp.Header.Get("Sec-WebSocket-Accept"); got != frame.Accept(key) {
		return "", errors.New("upgrade: Sec-WebSocket-Accept does not belong to the key that was sent")
	}
	want := strings.Join(command, " ")
	shown, err := message(r, apiserver.Stdout)
	if err != nil {
		return "", err
	}
	if got := strings.TrimSpace(shown); got != want {
		return "", fmt.Errorf("the API server would run %q, want %q", got, want)
	}
	const line = "hello"
	if err := frame.Write(conn, frame.Binary, append([]byte{apiserver.Stdin}, line...), true); err != nil {
		return "", fmt.Errorf("writing to stdin: %w", err)
	}
	if echo, err := message(r, apiserver.Stdout); err != nil {
		return "", err
	} else if echo != line {
		return "", fmt.Errorf("echo %q, want %q", echo, line)
	}
	if err := frame.Write(conn, frame.Close, []byte{0x03, 0xe8}, true); err != nil { // 1000: normal
		return "", fmt.Errorf("closing: %w", err)
	}
	if exit, err := message(r, apiserver.Exit); err != nil {
		return "", err
	} else if !strings.Contains(exit, `"Success"`) {
		return "", fmt.Errorf("exec ended with %s", exit)
	}
	return fmt.Sprintf("101 Switching Protocols; command in order: %s; stdin echoed; exit status Success", want), nil
}

func message(r io.Reader, channel byte) (string, error) {
	op, msg, masked, err := frame.Read(r)
	switch {
	case err != nil:
		return "", fmt.Errorf("reading a message: %w", err)
	case op != frame.Binary || masked || len(msg) == 0 || msg[0] != channel:
		return "", fmt.Errorf("a message on another channel than %d", channel)
	}
	return string(msg[1:]), nil
}
