package apiserver

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/frame"
)

// ExecProtocol is the subprotocol of kubectl exec over WebSocket (KEP-4006); each message begins with its channel.
const ExecProtocol = "v5.channel.k8s.io"

// Channels of ExecProtocol.
const (
	Stdin  byte = 0
	Stdout byte = 1
	Exit   byte = 3
)

// exec upgrades to a WebSocket whose first message shows the command as it arrived, argument by argument; after that it
// echoes stdin to stdout until the client closes.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if _, ok := s.store.get(name); !ok {
		notFound(w, name)
		return
	}
	key := r.Header.Get("Sec-WebSocket-Key")
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || key == "" {
		refuse(w, http.StatusBadRequest, "BadRequest", "exec needs an upgrade to websocket")
		return
	}
	if !slices.Contains(tokens(r.Header.Values("Sec-WebSocket-Protocol")), ExecProtocol) {
		refuse(w, http.StatusForbidden, "Forbidden", "exec speaks "+ExecProtocol+" only")
		return
	}
	command := r.URL.Query()["command"]
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil { // HTTP/2: kube-apiserver cannot upgrade there either
		refuse(w, http.StatusBadRequest, "BadRequest", "an upgrade needs HTTP/1.1")
		return
	}
	s.wg.Add(1)
	defer s.wg.Done()
	cut := make(chan struct{})
	defer close(cut)
	s.wg.Add(1)
	go func() { // http.Server.Close forgets hijacked connections
		defer s.wg.Done()
		select {
		case <-s.ctx.Done():
		case <-cut:
		}
		_ = conn.Close()
	}()
	_ = conn.SetDeadline(time.Time{})
	if err := echo(conn, rw.Reader, key, command); err != nil {
		s.o.Logger.Debug("exec ended", "err", err)
	}
}

func echo(conn net.Conn, r *bufio.Reader, key string, command []string) error {
	_, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n", frame.Accept(key), ExecProtocol)
	if err != nil {
		return err
	}
	shown := append([]byte{Stdout}, strings.Join(command, " ")+"\n"...)
	if err := frame.Write(conn, frame.Binary, shown, false); err != nil {
		return err
	}
	for {
		op, msg, masked, err := frame.Read(r)
		if err != nil {
			return err
		}
		switch {
		case !masked: // RFC 6455, section 5.1: a server must close
			return frame.Write(conn, frame.Close, []byte{0x03, 0xea}, false)
		case op == frame.Close:
			exit := append([]byte{Exit}, `{"kind":"Status","apiVersion":"v1","status":"Success"}`...)
			if err := frame.Write(conn, frame.Binary, exit, false); err != nil {
				return err
			}
			return frame.Write(conn, frame.Close, msg, false)
		case len(msg) > 0 && msg[0] == Stdin:
			msg[0] = Stdout
			if err := frame.Write(conn, frame.Binary, msg, false); err != nil {
				return err
			}
		}
	}
}

// tokens splits comma-separated header fields.
func tokens(fields []string) []string {
	var all []string
	for _, f := range fields {
		for t := range strings.SplitSeq(f, ",") {
			all = append(all, strings.TrimSpace(t))
		}
	}
	return all
}
