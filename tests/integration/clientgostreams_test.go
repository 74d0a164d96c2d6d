//go:build linux

package integration

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// streamer opens streams to the pod p with client-go's own executors and dialers.
type streamer struct {
	t      *testing.T
	config *rest.Config
	c      kubernetes.Interface
	ns     string
	spdy   bool
}

func (s *streamer) url(subresource string, options *core.PodExecOptions) *url.URL {
	r := s.c.CoreV1().RESTClient().Post().Resource("pods").Namespace(s.ns).Name("p").SubResource(subresource)
	if options != nil {
		r = r.VersionedParams(options, scheme.ParameterCodec)
	}
	return r.URL()
}

func (s *streamer) executor(options *core.PodExecOptions) remotecommand.Executor {
	s.t.Helper()
	u := s.url("exec", options)
	e, err := remotecommand.NewWebSocketExecutor(s.config, http.MethodGet, u.String())
	if s.spdy {
		e, err = remotecommand.NewSPDYExecutor(s.config, http.MethodPost, u)
	}
	must(s.t, err)
	return e
}

// run runs a script in the pod.
func (s *streamer) run(stdin []byte, script string) (stdout, stderr []byte, err error) {
	s.t.Helper()
	var out, complaint bytes.Buffer
	err = s.executor(&core.PodExecOptions{Command: []string{"sh", "-c", script}, Stdin: true, Stdout: true, Stderr: true}).
		StreamWithContext(s.t.Context(), remotecommand.StreamOptions{Stdin: bytes.NewReader(stdin), Stdout: &out, Stderr: &complaint})
	return out.Bytes(), complaint.Bytes(), err
}

func (s *streamer) dialer() httpstream.Dialer {
	s.t.Helper()
	u := s.url("portforward", nil)
	if !s.spdy {
		d, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, s.config)
		must(s.t, err)
		return d
	}
	transport, upgrader, err := spdy.RoundTripperFor(s.config)
	must(s.t, err)
	return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
}

// forward forwards a local port to one of the pod until stop is called.
func (s *streamer) forward(port int) (address string, stop func()) {
	s.t.Helper()
	end, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f, err := portforward.NewOnAddressesForStreaming(s.dialer(), []string{"127.0.0.1"}, []string{fmt.Sprint("0:", port)}, end, ready, io.Discard, io.Discard)
	must(s.t, err)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		s.t.Fatalf("port-forward ended: %v", err)
	}
	ports, err := f.GetPorts()
	must(s.t, err)
	return fmt.Sprint("127.0.0.1:", ports[0].Local), func() {
		close(end)
		if err := <-done; err != nil {
			s.t.Errorf("port-forward: %v", err)
		}
	}
}

// TestClientGoStreams: exec and port-forward of rest.Config users, on a real node, over SPDY
// and WebSocket, and again with the same configuration after the proxy has died.
func TestClientGoStreams(t *testing.T) {
	t.Parallel()
	n := node(t)
	for _, way := range []string{"mtls", "sigv4", "kubeconfig"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			h, ns := newHome(t), namespace(t)
			p := nodePod(n, ns, "p", "nc -ll -p 7000 -e cat & exec cat")
			p.Spec.Containers[0].Stdin = true
			runPod(t, p)
			config := h.execConfigFor(way)
			res, calls := h.resolve(config)
			c, err := kubernetes.NewForConfigAndClient(res.Config, res.HTTPClient)
			must(t, err)
			streams, err := res.StreamConfig()
			must(t, err)
			for _, name := range []string{"spdy", "websocket"} {
				s := &streamer{t, streams, c, ns, name == "spdy"}
				s.executes(name)
				s.forwards(name)
				wrong := &streamer{t, res.Config, c, ns, name == "spdy"}
				if _, _, err := wrong.run(nil, "true"); err == nil || !strings.Contains(err.Error(), "StreamConfig") {
					t.Errorf("%s with Config in place of StreamConfig: %v", name, err)
				}
			}
			for pid := range processes(h.dir) {
				must(t, syscall.Kill(pid, syscall.SIGKILL))
			}
			for _, name := range []string{"spdy", "websocket"} {
				s := &streamer{t, streams, c, ns, name == "spdy"}
				s.executes(name + " after a restart")
			}
			if n := calls.well.Load(); n != 2 || calls.failed.Load() != 0 || calls.errors.Load() != 0 {
				t.Errorf("the plugin was executed %d times and failed %d times, %d errors; want 2, 0 and 0", n, calls.failed.Load(), calls.errors.Load())
			}
		})
	}
}

func (s *streamer) executes(name string) {
	s.t.Helper()
	up := make([]byte, 1<<20)
	_, _ = rand.Read(up)
	stdout, stderr, err := s.run(up, "cat; echo complaint >&2; exit 7")
	var exit utilexec.CodeExitError
	if sha256.Sum256(stdout) != sha256.Sum256(up) || string(stderr) != "complaint\n" || !errors.As(err, &exit) || exit.Code != 7 {
		s.t.Errorf("%s: %d of %d bytes, stderr %q, %v; want the same bytes and exit code 7", name, len(stdout), len(up), stderr, err)
	}
}

func (s *streamer) forwards(name string) {
	s.t.Helper()
	address, stop := s.forward(7000)
	defer stop()
	for range 2 {
		conn, err := net.Dial("tcp", address)
		must(s.t, err)
		data := make([]byte, 256<<10)
		_, _ = rand.Read(data)
		go func() { _, _ = conn.Write(data) }()
		back := make([]byte, len(data))
		if _, err := io.ReadFull(conn, back); err != nil || !bytes.Equal(back, data) {
			s.t.Errorf("%s: what was sent to the forwarded port came back changed, %v", name, err)
		}
		_ = conn.Close()
	}
}

// TestClientGoStreamsEnd: Close cuts what is open.
func TestClientGoStreamsEnd(t *testing.T) {
	t.Parallel()
	n, ns := node(t), namespace(t)
	runPod(t, nodePod(n, ns, "p", "exec sleep 1000000"))
	for _, name := range []string{"spdy", "websocket"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			res, _ := h.resolve(h.execConfigFor("mtls"))
			c, err := kubernetes.NewForConfigAndClient(res.Config, res.HTTPClient)
			must(t, err)
			streams, err := res.StreamConfig()
			must(t, err)
			s := &streamer{t, streams, c, ns, name == "spdy"}
			ended, out := make(chan error, 1), newLines()
			go func() {
				ended <- s.executor(&core.PodExecOptions{Command: []string{"sh", "-c", "echo on; exec sleep 1000000"}, Stdout: true}).
					StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: out})
				out.close()
			}()
			out.await(t, "on\n")
			must(t, res.Close())
			select {
			case err := <-ended:
				t.Logf("%s: %v", name, err)
			case <-time.After(patience):
				t.Errorf("%s: the command goes on", name)
			}
		})
	}
}
