package demo

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/frame"
)

// janes is jane, straight at an API server of her own.
func janes(t *testing.T) (caller, *apiserver.Server) {
	t.Helper()
	s := must(apiserver.Start(apiserver.Options{Pods: []string{seeded}, Running: time.Millisecond}))
	t.Cleanup(func() { _ = s.Close() })
	keyPEM, certPEM, err := s.Issue(jane.user, jane.groups...)
	if err != nil {
		t.Fatal(err)
	}
	rt := directly(s.ClientConfig(must(tls.X509KeyPair(certPEM, keyPEM))))
	t.Cleanup(rt.CloseIdleConnections)
	return caller{s.URL(), rt}, s
}

// What must be refused and is not, or who must be somebody and is somebody else, ends the demonstration.
func TestCallerTells(t *testing.T) {
	c, _ := janes(t)
	if _, err := c.refused(t.Context(), "/version"); err == nil || !strings.Contains(err.Error(), "200") {
		t.Errorf("a request that passed counts as refused: %v", err)
	}
	for name, w := range map[string]who{
		"user":          {user: "joe", groups: jane.groups, by: jane.by},
		"groups":        {user: jane.user, groups: []string{"admins"}, by: jane.by},
		"authenticator": {user: jane.user, groups: jane.groups, by: "sigv4"},
	} {
		if _, err := c.whoami(t.Context(), w); err == nil {
			t.Errorf("another %s counts as jane's", name)
		}
	}
	if _, err := c.whoami(t.Context(), jane); err != nil {
		t.Error(err)
	}
	err := c.call(t.Context(), http.MethodGet, podsPath+"/none", nil, http.StatusOK, nil)
	if err == nil || !strings.Contains(err.Error(), `404 Not Found: pods "none" not found`) {
		t.Errorf("error %v, want the server's own words", err)
	}
}

// A watch outlives the step that opened it, and ends with a step that waits in vain.
func TestWatchOutlivesItsStep(t *testing.T) {
	c, _ := janes(t)
	step, done := context.WithCancel(t.Context())
	w, err := c.watch(step, t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	done()
	if _, err := c.create(t.Context(), w, "job"); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.next(short, "ADDED", "never", "Pending"); err == nil {
		t.Error("an event that never happened")
	}
}

// A proxy that sorts the query would run another program.
func TestUpgradeSeesTheOrder(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*http.Request) string // what the exec shows
		want   string
	}{
		"in order": {func(r *http.Request) string { return strings.Join(r.URL.Query()["command"], " ") }, ""},
		"sorted":   {func(*http.Request) string { return "-la /tmp ls" }, `would run "-la /tmp ls"`},
		"refused":  {nil, "403 Forbidden: no exec today, want 101"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			served := make(chan error, 1)
			go func() { served <- serveExec(theirs, c.answer) }()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := upgrade(ctx, ours, &url.URL{Scheme: "https", Host: "127.0.0.1:6443"})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err := <-served; err != nil && c.want == "" {
				t.Error(err)
			}
		})
	}
}

func serveExec(conn net.Conn, answer func(*http.Request) string) error {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	r, err := http.ReadRequest(in)
	if err != nil {
		return err
	}
	if answer == nil {
		body := `{"kind":"Status","message":"no exec today"}`
		_, err := fmt.Fprintf(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		return err
	}
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", frame.Accept(r.Header.Get("Sec-WebSocket-Key"))); err != nil {
		return err
	}
	if err := frame.Write(conn, frame.Binary, []byte("\x01"+answer(r)+"\n"), false); err != nil {
		return err
	}
	_, msg, _, err := frame.Read(in)
	if err != nil {
		return err
	}
	if err := frame.Write(conn, frame.Binary, append([]byte{1}, msg[1:]...), false); err != nil {
		return err
	}
	if op, _, _, err := frame.Read(in); err != nil || op != frame.Close {
		return errors.Join(err, errors.New("no close"))
	}
	return frame.Write(conn, frame.Binary, []byte("\x03"+`{"status":"Success"}`), false)
}

func TestBrief(t *testing.T) {
	if got := brief("short"); got != "short" {
		t.Error(got)
	}
	long := strings.Repeat("word ", 40)
	if got := brief(long); len(got) > 80 || !strings.HasSuffix(got, "word…") {
		t.Errorf("%q", got)
	}
}
