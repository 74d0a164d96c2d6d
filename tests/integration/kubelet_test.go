//go:build linux

package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// kubelet plays the node side of kubectl exec and logs, for the real
// kube-apiserver to connect to. A command prints its arguments, then its stdin,
// and ends with exit code 3; a log has one line and then nothing, until the end.
type kubelet struct {
	hold chan struct{}

	mu      sync.Mutex
	queries []string
}

const execProtocol = "v4.channel.k8s.io"

// pod makes a node with a fake kubelet and a pod on it.
func pod(t *testing.T, ns string) (*kubelet, string) {
	t.Helper()
	k := &kubelet{hold: make(chan struct{})}
	nodeWith(t, ns, k)
	t.Cleanup(func() { close(k.hold) }) // before the server waits for its requests
	return k, "p"
}

// nodeWith makes a node with a handler in the place of its kubelet, and a pod p
// that is said to run on it.
func nodeWith(t *testing.T, ns string, kubelet http.Handler) {
	t.Helper()
	s := startTLS(t, "127.0.0.1", kubelet)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	must(t, err)
	number, err := strconv.Atoi(port)
	must(t, err)
	ctx := t.Context()
	node, err := suite.admin.CoreV1().Nodes().Create(ctx, &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + ns}}, metav1.CreateOptions{})
	must(t, err)
	node.Status = core.NodeStatus{
		Addresses:       []core.NodeAddress{{Type: core.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: core.NodeDaemonEndpoints{KubeletEndpoint: core.DaemonEndpoint{Port: int32(number)}},
	}
	_, err = suite.admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	must(t, err)
	p, err := suite.admin.CoreV1().Pods(ns).Create(ctx, &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       core.PodSpec{NodeName: node.Name, Containers: []core.Container{{Name: "c", Image: "none", Stdin: true}}},
	}, metav1.CreateOptions{})
	must(t, err)
	p.Status.Phase = core.PodRunning
	_, err = suite.admin.CoreV1().Pods(ns).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	must(t, err)
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	k.queries = append(k.queries, r.URL.RawQuery)
	k.mu.Unlock()
	switch {
	case strings.HasPrefix(r.URL.Path, "/exec/"):
		k.exec(w, r)
	case strings.HasPrefix(r.URL.Path, "/containerLogs/"):
		_, _ = io.WriteString(w, "first line\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-k.hold:
		case <-r.Context().Done():
		}
	default:
		http.NotFound(w, r)
	}
}

// exec speaks the remote command protocol over SPDY.
func (k *kubelet) exec(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{execProtocol}); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	arrivals := make(chan httpstream.Stream, 8)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		arrivals <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer func() { _ = conn.Close() }()
	query := r.URL.Query()
	want := 1
	for _, name := range []string{core.ExecStdinParam, core.ExecStdoutParam, core.ExecStderrParam} {
		if query.Get(name) == "1" || query.Get(name) == "true" {
			want++
		}
	}
	streams := map[string]httpstream.Stream{}
	for len(streams) < want {
		select {
		case s := <-arrivals:
			streams[s.Headers().Get(core.StreamType)] = s
		case <-time.After(patience):
			return
		}
	}
	stdout := streams[core.StreamTypeStdout]
	_, _ = fmt.Fprintf(stdout, "%q\n", query[core.ExecCommandParam])
	if stdin := streams[core.StreamTypeStdin]; stdin != nil {
		_, _ = io.Copy(stdout, stdin)
	}
	_ = stdout.Close()
	_, _ = io.WriteString(streams[core.StreamTypeError], `{"metadata":{},"status":"Failure","message":"exit 3",`+
		`"reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}`)
	_ = streams[core.StreamTypeError].Close()
}

// TestKubectlExec: the real kubectl, both of its protocols, and kube-apiserver.
func TestKubectlExec(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"mtls", "sigv4"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			h, ns := newHome(t), namespace(t)
			k, name := pod(t, ns)
			cert, key := h.user("jane", "dev")
			server, flags := suite.cluster.API.URL, []string(nil)
			if way == "sigv4" {
				h.sharedCredentials()
				server = newFrontProxy(t, "127.0.0.1").URL
				flags = []string{"--auth", "sigv4", "--aws-region", "eu-central-1", "--aws-service", "execute-api"}
			}
			kc := h.proxied(append([]string{"--kubeconfig", h.kubeconfig("plain", server, cert, key)}, flags...)...)
			for _, websockets := range []string{"true", "false"} {
				h.env["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"] = websockets
				cmd := h.command(suite.kubectl, "--kubeconfig="+kc, "-n", ns, "exec", "-i", name, "--", "ls", "-la", "/tmp")
				cmd.Stdin = strings.NewReader("from stdin\n")
				r := h.do(cmd)
				if want := `["ls" "-la" "/tmp"]` + "\nfrom stdin\n"; r.stdout != want || r.code != 3 {
					t.Errorf("websockets %s: %s\nwant the command in order, its stdin and exit code 3", websockets, r)
				}
			}
			k.mu.Lock()
			for _, q := range k.queries {
				if !strings.Contains(q, "command=ls&command=-la&command=%2Ftmp") {
					t.Errorf("the node was asked %s", q)
				}
			}
			k.mu.Unlock()
			logs := h.start(suite.kubectl, "--kubeconfig="+kc, "-n", ns, "logs", "-f", name)
			logs.stdout.await(t, "first line\n")
			logs.signal(syscall.SIGINT)
			logs.wait()
		})
	}
}
