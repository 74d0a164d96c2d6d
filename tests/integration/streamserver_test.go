//go:build linux

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	core "k8s.io/api/core/v1"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// streamServer is kubelet's own streaming server, for the real kube-apiserver to
// connect to, where a machine can have no node, and for what containerd leaves
// out. Its containers are programs of this machine: one echoes its stdin from
// beginning to end, the others run in the directory dir.
type streamServer struct {
	dir    string
	server streaming.Server
	stdin  io.Writer // of the first program
	stdout *lines
	echo   string // address of what echoPort stands for
	total  string // of what totalPort stands for
}

// serveStreams makes a node with a streaming server, and on it the pod p.
func serveStreams(t *testing.T, ns string) {
	t.Helper()
	s := &streamServer{dir: t.TempDir(), stdout: newLines()}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "https", Host: "streams"}
	var err error
	s.server, err = streaming.NewServer(config, s)
	must(t, err)
	s.echo = listenEach(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })
	s.total = listenEach(t, func(conn *net.TCPConn) {
		n, _ := io.Copy(io.Discard, conn)
		_, _ = fmt.Fprintln(conn, n)
	})
	echo := exec.Command("cat")
	s.stdin, err = echo.StdinPipe()
	must(t, err)
	echo.Stdout = s.stdout
	must(t, proc.StartCmd(echo))
	t.Cleanup(func() {
		_ = echo.Process.Kill()
		_ = echo.Wait()
	})
	nodeWith(t, ns, s)
}

// listenEach serves connections one beside the other.
func listenEach(t *testing.T, serve func(*net.TCPConn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				serve(conn.(*net.TCPConn))
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// ServeHTTP does what a kubelet does with the API server's requests: it asks for
// the address of a stream, and then passes on what comes. TestKubectlExec has a
// kubelet that looks at the requests themselves.
func (s *streamServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	q := r.URL.Query()
	yes := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	var address string
	var err error
	switch kind {
	case "exec":
		var resp *criapi.ExecResponse
		if resp, err = s.server.GetExec(&criapi.ExecRequest{
			ContainerId: "c", Cmd: q[core.ExecCommandParam], Tty: yes(core.ExecTTYParam),
			Stdin: yes(core.ExecStdinParam), Stdout: yes(core.ExecStdoutParam), Stderr: yes(core.ExecStderrParam),
		}); err == nil {
			address = resp.Url
		}
	case "attach":
		var resp *criapi.AttachResponse
		if resp, err = s.server.GetAttach(&criapi.AttachRequest{
			ContainerId: "c", Tty: yes(core.ExecTTYParam),
			Stdin: yes(core.ExecStdinParam), Stdout: yes(core.ExecStdoutParam), Stderr: yes(core.ExecStderrParam),
		}); err == nil {
			address = resp.Url
		}
	case "portForward":
		var resp *criapi.PortForwardResponse
		if resp, err = s.server.GetPortForward(&criapi.PortForwardRequest{PodSandboxId: "p"}); err == nil {
			address = resp.Url
		}
	case "containerLogs":
		_ = s.stdout.follow(r.Context(), w, 0)
		return
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	u, err := url.Parse(address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	there := r.Clone(r.Context())
	there.URL.Path, there.URL.RawPath, there.RequestURI = u.Path, "", u.Path
	s.server.ServeHTTP(w, there)
}

// Exec implements streaming.Runtime.
func (s *streamServer) Exec(_ context.Context, _ string, args []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = s.dir
	if tty {
		return execOnTerminal(cmd, in, out, resize)
	}
	cmd.Stdout, cmd.Stderr = out, errs
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := proc.StartCmd(cmd); err != nil {
		return err
	}
	if in != nil {
		go func() {
			_, _ = io.Copy(stdin, in) // until the stream ends, which the program's end does
			_ = stdin.Close()
		}()
	} else {
		_ = stdin.Close()
	}
	return ended(cmd.Wait())
}

func execOnTerminal(cmd *exec.Cmd, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	master, slave, err := openTerminal()
	if err != nil {
		return err
	}
	defer func() { _ = master.Close() }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = proc.StartCmd(cmd)
	_ = slave.Close()
	if err != nil {
		return err
	}
	go func() {
		for size := range resize {
			_ = setSize(master, size.Height, size.Width)
		}
	}()
	go func() { _, _ = io.Copy(master, in) }()
	_, _ = io.Copy(out, master) // ends with an error when the program has
	return ended(cmd.Wait())
}

// ended gives an exit code in the words of the streaming server.
func ended(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// Attach implements streaming.Runtime.
func (s *streamServer) Attach(ctx context.Context, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	already := len(s.stdout.String())
	go func() {
		_, _ = io.Copy(s.stdin, in)
		cancel()
	}()
	return s.stdout.follow(ctx, out, already)
}

// PortForward implements streaming.Runtime. Each side hears of the other's end.
func (s *streamServer) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	address, known := map[string]string{echoPort: s.echo, totalPort: s.total}[fmt.Sprint(port)]
	if !known {
		return fmt.Errorf("nobody listens on port %d", port)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	return err
}

// follow writes what was printed from offset on to w, and what comes, until ctx ends.
func (l *lines) follow(ctx context.Context, w io.Writer, offset int) error {
	for {
		l.mu.Lock()
		text, more, closed := l.text.String(), l.more, l.closed
		l.mu.Unlock()
		if _, err := io.WriteString(w, text[offset:]); err != nil || closed {
			return err
		}
		offset = len(text)
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}

// TestStreamServer: every stream to kubelet's streaming server, and what
// containerd does not do: it ends a forwarded connection a second after one
// side has nothing more to say, whatever the other still has.
func TestStreamServer(t *testing.T) {
	routes(t, func(t *testing.T, r *route) {
		r.size = 1 << 20
		serveStreams(t, r.ns)
		streams(t, r)
		t.Run("half-close", func(t *testing.T) {
			if answer := r.total(t); answer != "1048576\n" {
				t.Errorf("answered %q, want 1048576 after the end", answer)
			}
		})
	})
}
