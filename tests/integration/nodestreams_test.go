//go:build linux

package integration

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
)

// route is one of the ways a stream can take to a pod: kubectl, execproxy, a
// verifying front proxy where it is signed, kube-apiserver, kubelet, containerd.
type route struct {
	*home
	way, protocol string // mtls or sigv4; websocket or spdy
	kubeconfig    string
	direct        string   // kubeconfig to the same server without execproxy
	once          []string // execproxy run, up to what it is to run
	ns            string
	size          int64 // of what goes through a stream, in bytes
	front         *frontProxy
}

// On echoPort pods echo what they are sent; on totalPort they first hear all of
// it, and then answer how many bytes it was.
const echoPort, totalPort = "7000", "7001"

// routes runs a test over each of the four.
func routes(t *testing.T, test func(t *testing.T, r *route)) {
	t.Helper()
	t.Parallel()
	for _, way := range []string{"mtls", "sigv4"} {
		for _, protocol := range []string{"websocket", "spdy"} {
			t.Run(way+"/"+protocol, func(t *testing.T) {
				t.Parallel()
				r := newRoute(t, way, protocol)
				test(t, r)
				r.check(t)
			})
		}
	}
}

func newRoute(t *testing.T, way, protocol string) *route {
	t.Helper()
	r := &route{home: newHome(t), way: way, protocol: protocol, ns: namespace(t), size: 64 << 20}
	cert, key := r.user("jane", "dev")
	server, flags := suite.cluster.API.URL, []string(nil)
	if way == "sigv4" {
		r.sharedCredentials()
		r.front = newFrontProxy(t, "127.0.0.1")
		server = r.front.URL
		flags = []string{"--auth", "sigv4", "--aws-region", "eu-central-1", "--aws-service", "execute-api"}
	}
	r.direct = r.home.kubeconfig("plain", server, cert, key)
	flags = append(flags, "--kubeconfig", r.direct)
	r.kubeconfig = r.proxied(flags...)
	r.once = append(append([]string{r.bin, "run"}, flags...), "--")
	websockets := strconv.FormatBool(protocol == "websocket")
	r.env["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"], r.env["KUBECTL_PORT_FORWARD_WEBSOCKETS"] = websockets, websockets
	return r
}

// pod runs the pod p, which echoes its stdin and what comes to echoPort. Where a
// machine cannot have a node, it is one of kubelet's own streaming server.
func (r *route) pod(t *testing.T) {
	t.Helper()
	n, err := shared.start()
	if errors.Is(err, cluster.ErrNoCgroups) {
		t.Logf("%v: it is kubelet's own streaming server", err)
		serveStreams(t, r.ns)
		return
	}
	needNode(t, err)
	p := nodePod(n, r.ns, "p", "nc -ll -p "+echoPort+" -e cat & nc -ll -p "+totalPort+" -e /bin/total & exec cat")
	p.Spec.Containers[0].Stdin = true
	runPod(t, p)
}

// args are those of a kubectl on this route.
func (r *route) args(args ...string) []string {
	return append([]string{suite.kubectl, "--kubeconfig=" + r.kubeconfig, "-n", r.ns}, args...)
}

// check looks at who did what, in the API server's words: WebSocket's handshake
// is a GET and so the verb get, SPDY's a POST and so create.
func (r *route) check(t *testing.T) {
	t.Helper()
	verb, user := "get", "jane"
	if r.protocol == "spdy" {
		verb = "create"
	}
	if r.way == "sigv4" {
		user = "arn:aws:iam::1:user/jane"
		if passed, refused := r.front.counts(); passed == 0 || len(refused) > 0 {
			t.Errorf("the front proxy let %d requests pass and refused %v", passed, refused)
		}
	}
	for _, what := range []string{"exec", "attach", "portforward"} {
		for _, e := range r.events(t, what) {
			if e.Verb != verb || e.User.Username != user {
				t.Errorf("%s as %s, want %s as %s: %s", e.Verb, e.User.Username, verb, user, e.RequestURI)
			}
		}
	}
}

// script is run in the pod; its stdin is what in says.
func (r *route) script(in, script string) result {
	r.t.Helper()
	cmd := r.command(r.args("exec", "-i", "p", "--", "sh", "-c", script)...)
	cmd.Stdin = strings.NewReader(in)
	return r.do(cmd)
}

func TestNodeStreams(t *testing.T) {
	routes(t, func(t *testing.T, r *route) {
		r.pod(t)
		streams(t, r)
		if r.way == "mtls" {
			t.Run("half-close", func(t *testing.T) { sameHalfClose(t, r) })
		}
	})
}

// streams tries everything that kubectl makes a stream for.
func streams(t *testing.T, r *route) {
	t.Helper()
	for _, c := range []struct {
		name, subresource string
		test              func(*testing.T, *route)
	}{
		{"exec", "exec?", execs}, {"terminal", "exec?", resizes}, {"attach", "attach?", attaches},
		{"logs", "log?", followsLogs}, {"cp", "exec?", copies}, {"port-forward", "portforward", forwards},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, r)
			// At the latest now it has ended for the API server, too.
			eventually(t, patience, func() error {
				if len(r.events(t, c.subresource)) == 0 {
					return fmt.Errorf("the API server's audit log knows no %s that has ended", c.subresource)
				}
				return nil
			})
		})
	}
}

// events are what the API server wrote about the streams that have ended.
func (r *route) events(t *testing.T, subresource string) []auditEvent {
	t.Helper()
	return auditEvents(t, suite.cluster.API, "/api/v1/namespaces/"+r.ns+"/pods/p/"+subresource)
}

func execs(t *testing.T, r *route) {
	t.Helper()
	if got := r.script("one\ntwo\n", "cat; echo complaint >&2; exit 7"); got.stdout != "one\ntwo\n" || !strings.HasPrefix(got.stderr, "complaint\n") || got.code != 7 {
		t.Errorf("%s\nwant its stdin, the complaint and exit code 7", got)
	}
	if got := r.run(r.args("exec", "p", "--", "printf", `%s|`, "a b", "", "c&d=e?f%20", "-x", "ü")...); got.ok(t) != "a b||c&d=e?f%20|-x|ü|" {
		t.Errorf("its arguments arrived as %q", got.stdout)
	}
	if got := r.run(r.args("exec", "p", "--", "no-such-program")...); got.code == 0 || !strings.Contains(got.stderr, "no-such-program") {
		t.Errorf("a program that is not there: %s", got)
	}
	// Nothing ends a command but its own end: it has said all it had to hear.
	if got := r.script("", "cat; sleep 1; echo later"); got.ok(t) != "later\n" {
		t.Errorf("after its stdin ended it printed %q", got.stdout)
	}
}

// resizes: kubectl exec -it in a terminal that changes its size, and the same as
// execproxy's child.
func resizes(t *testing.T, r *route) {
	t.Helper()
	r.env["TERM"] = "xterm"
	exec := []string{"-n", r.ns, "exec", "-it", "p", "--", "sh", "-c",
		`trap 'exit 5' INT; read line; echo "got $line"; while :; do echo "size $(stty size)"; sleep 0.1; done`}
	for _, kubectl := range [][]string{{suite.kubectl, "--kubeconfig=" + r.kubeconfig}, append(slices.Clone(r.once), suite.kubectl)} {
		tty, wait := r.onTerminal(append(kubectl, exec...)...)
		must(t, setSize(tty.master, 31, 97))
		tty.types("typed\r")
		tty.shown.await(t, "got typed\r\n")
		tty.shown.await(t, "size 31 97\r\n")
		must(t, setSize(tty.master, 50, 132))
		tty.shown.await(t, "size 50 132\r\n")
		tty.types("\x03")
		if code := wait(); code != 5 {
			t.Errorf("%q: exit code %d, want 5 of the command's handler of Ctrl-C; the screen:\n%s", kubectl, code, tty.shown)
		}
	}
}

// attaches: to the pod's first process, which echoes and goes on without us.
func attaches(t *testing.T, r *route) {
	t.Helper()
	for i := range 2 {
		r.attach(t, fmt.Sprintf("attached %d\n", i))
	}
}

// attach says a line to the pod's first process, and waits for its echo. It says
// it again at times: a runtime listens to us before it has us listen.
func (r *route) attach(t *testing.T, line string) {
	t.Helper()
	b := r.start(r.args("attach", "-i", "p")...)
	var said time.Time
	eventually(t, patience, func() error {
		if strings.Contains(b.stdout.String(), line) {
			return nil
		}
		if time.Since(said) > time.Second {
			said = time.Now()
			if _, err := io.WriteString(b.stdin, line); err != nil {
				return err
			}
		}
		return fmt.Errorf("no echo of %q; it printed %s%s", line, b.stdout, b.stderr)
	})
	b.signal(syscall.SIGINT)
	b.wait()
}

// followsLogs: lines come as they are written, until Ctrl-C.
func followsLogs(t *testing.T, r *route) {
	t.Helper()
	b := r.start(r.args("logs", "-f", "p")...)
	for i := range 3 {
		line := fmt.Sprintf("logged %d\n", i)
		r.attach(t, line)
		b.stdout.await(t, line)
	}
	b.signal(syscall.SIGINT)
	b.wait()
}
