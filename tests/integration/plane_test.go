//go:build linux

package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// plane is a cluster of its own for the components of a control plane: what they
// do to nodes and pods must be nobody else's concern.
var plane = struct {
	running atomic.Pointer[cluster.Cluster]
	start   func() (*controlPlane, error)
}{}

func init() {
	plane.start = sync.OnceValues(func() (*controlPlane, error) {
		dir := filepath.Join(suite.dir, "plane")
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		c, err := cluster.Start(context.Background(), dir)
		if err != nil {
			return nil, err
		}
		plane.running.Store(c)
		client, err := c.AdminClient()
		if err != nil {
			return nil, err
		}
		admin, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: c.API.URL, QPS: -1}, client)
		return &controlPlane{Cluster: c, admin: admin}, err
	})
}

// stopPlane ends that cluster, where a test has needed it.
func stopPlane() {
	if c := plane.running.Load(); c != nil {
		c.Stop()
	}
}

type controlPlane struct {
	*cluster.Cluster
	admin *kubernetes.Clientset
}

func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	p, err := plane.start()
	must(t, err)
	return p
}

func (p *controlPlane) key(name string) string { return filepath.Join(p.Dir, name) }

// identity makes a client certificate for a component, in files of a home.
func (p *controlPlane) identity(h *home, name string, groups ...string) (cert, key string) {
	h.t.Helper()
	pair, err := p.CA.Issue(pki.Options{CommonName: name, Organizations: groups})
	must(h.t, err)
	cert, key, err = pair.Write(h.dir, "component")
	must(h.t, err)
	return cert, key
}

// flags are those of a proxy for a component at a server, which may be a wire to it.
func (p *controlPlane) flags(h *home, server, name string, groups ...string) []string {
	h.t.Helper()
	cert, key := p.identity(h, name, groups...)
	return []string{"--server", server, "--certificate-authority", p.key("ca.crt"), "--auth", "mtls", "--cert", cert, "--key", key}
}

// controllers are the flags of a kube-controller-manager that makes pods of
// deployments, and watches over nodes.
func (p *controlPlane) controllers(t *testing.T, kubeconfig string, more ...string) []string {
	return append([]string{
		p.Bin["kube-controller-manager"],
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--use-service-account-credentials",
		"--controllers=deployment-controller,replicaset-controller,node-lifecycle-controller",
		"--service-account-private-key-file=" + p.key("sa.key"), "--root-ca-file=" + p.key("ca.crt"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", freePort(t)),
		"--tls-cert-file=" + p.key("controllers-tls.crt"), "--tls-private-key-file=" + p.key("controllers-tls.key"),
	}, more...)
}

// scheduler are the flags of a kube-scheduler.
func (p *controlPlane) scheduler(t *testing.T, kubeconfig string, more ...string) []string {
	return append([]string{
		p.Bin["kube-scheduler"],
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", freePort(t)),
		"--tls-cert-file=" + p.key("controllers-tls.crt"), "--tls-private-key-file=" + p.key("controllers-tls.key"),
	}, more...)
}

// schedulerOf is a kube-scheduler for the pods of one namespace that name it.
// Nobody else binds them, and its lease bears the same name. The times are those of
// a lease: how long it lasts, and how long its leader tries to renew it.
func (p *controlPlane) schedulerOf(t *testing.T, h *home, ns, kubeconfig, lasts, tries string) []string {
	config := h.file("scheduler.yaml", fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q}
leaderElection: {leaderElect: true, leaseDuration: %s, renewDeadline: %s, retryPeriod: 1s, resourceName: %q}
profiles: [{schedulerName: %q}]
`, kubeconfig, lasts, tries, ns, ns))
	return append(p.scheduler(t, kubeconfig), "--config="+config)
}

// namespace makes one.
func (p *controlPlane) namespace(t *testing.T) string {
	t.Helper()
	ns, err := p.admin.CoreV1().Namespaces().Create(t.Context(),
		&core.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	must(t, err)
	return ns.Name
}

// place is a node for the scheduler alone: nothing runs there.
func (p *controlPlane) place(t *testing.T, ns string) {
	t.Helper()
	nodes := p.admin.CoreV1().Nodes()
	n, err := nodes.Create(t.Context(), &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "place-" + ns, Labels: map[string]string{"place": ns}}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { _ = nodes.Delete(context.Background(), n.Name, metav1.DeleteOptions{}) })
	room := core.ResourceList{core.ResourceCPU: quantity("4"), core.ResourceMemory: quantity("4Gi"), core.ResourcePods: quantity("100")}
	n.Status = core.NodeStatus{
		Capacity: room, Allocatable: room,
		Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}},
	}
	_, err = nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
	must(t, err)
}

// scheduled creates a pod for place and waits until its scheduler has bound it.
func (p *controlPlane) scheduled(t *testing.T, ns, name string) {
	t.Helper()
	pods := p.admin.CoreV1().Pods(ns)
	_, err := pods.Create(t.Context(), &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: core.PodSpec{
		NodeSelector: map[string]string{"place": ns}, SchedulerName: ns,
		// Whatever else looks after nodes here knows no kubelet of this one.
		Tolerations: []core.Toleration{{Operator: core.TolerationOpExists}},
		Containers:  []core.Container{{Name: "c", Image: "none"}},
	}}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, 2*patience, func() error {
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && pod.Spec.NodeName == "" {
			err = fmt.Errorf("pod %s waits for a node: %v", name, pod.Status.Conditions)
		}
		return err
	})
}

// lease reads a leader's.
func (p *controlPlane) lease(ctx context.Context, name string) (*coordination.Lease, error) {
	l, err := p.admin.CoordinationV1().Leases("kube-system").Get(ctx, name, metav1.GetOptions{})
	if err == nil && (l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil) {
		err = fmt.Errorf("lease %s is held by nobody", name)
	}
	return l, err
}

// leads waits until a lease is held, and returns it.
func (p *controlPlane) leads(t *testing.T, name string) (l *coordination.Lease) {
	t.Helper()
	eventually(t, 2*patience, func() (err error) { l, err = p.lease(t.Context(), name); return err })
	return l
}

// stillLeads waits until the holder of before has renewed its lease; nobody may
// have held it in between.
func (p *controlPlane) stillLeads(t *testing.T, before *coordination.Lease) {
	t.Helper()
	since := metav1.NowMicro()
	eventually(t, 4*patience, func() error {
		l, err := p.lease(t.Context(), before.Name)
		if err != nil {
			return err
		}
		if *l.Spec.HolderIdentity != *before.Spec.HolderIdentity || *l.Spec.LeaseTransitions != *before.Spec.LeaseTransitions {
			t.Fatalf("%s changed hands: %v, was %v", before.Name, l.Spec, before.Spec)
		}
		if !l.Spec.RenewTime.After(since.Time) {
			return fmt.Errorf("%s was renewed last at %v, now is %v", before.Name, l.Spec.RenewTime, since)
		}
		return nil
	})
}

// alive fails the test when a component has ended.
func (b *background) alive(t *testing.T) {
	t.Helper()
	select {
	case <-b.done:
		t.Fatalf("%s ended with exit code %d: %s", filepath.Base(b.cmd.Args[0]), b.code, b.stderr)
	default:
	}
}

// sidecar is a proxy that is killed and started again, as its service manager would.
type sidecar struct {
	*server
	h      *home
	args   []string
	client *tls.Config // of the first kubeconfig
}

func (h *home) sidecar(args ...string) *sidecar {
	h.t.Helper()
	s := h.serve(args...)
	return &sidecar{server: s, h: h, args: s.cmd.Args, client: s.tls(h.t, "http/1.1")}
}

func (s *sidecar) kill() {
	s.signal(syscall.SIGKILL)
	s.wait()
}

// again starts it anew and waits until it serves whoever has the pair of before.
func (s *sidecar) again() {
	t := s.h.t
	t.Helper()
	s.background = s.h.start(s.args...)
	eventually(t, patience, func() error {
		s.alive(t)
		conn, err := tls.Dial("tcp", s.address(), s.client)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if _, err := fmt.Fprint(conn, "GET /version HTTP/1.1\r\nHost: "+s.address()+"\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusUnauthorized {
			t.Fatal("the proxy that was started again does not know the pair of before")
		}
		if why := resp.Header.Get("Execproxy-Error"); why != "" {
			return errors.New(resp.Status + " " + why)
		}
		return nil
	})
}

// record is one line of an audit log.
type record struct {
	Verb, RequestURI, Stage, UserAgent string
	User                               struct{ Username string }
	ResponseStatus                     struct{ Code int }
}

// records reads the audit log of an API server.
func records(t *testing.T, api *cluster.APIServer, want func(record) bool) (found []record) {
	t.Helper()
	f, err := os.Open(api.Audit)
	must(t, err)
	defer func() { _ = f.Close() }()
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var r record
		if json.Unmarshal(scanner.Bytes(), &r) == nil && r.Stage == "ResponseComplete" && want(r) {
			found = append(found, r)
		}
	}
	must(t, scanner.Err())
	return found
}

// by counts who did what. A URI matches by its beginning.
func by(t *testing.T, api *cluster.APIServer, verb, uri string) map[string]int {
	t.Helper()
	users := map[string]int{}
	for _, r := range records(t, api, func(r record) bool { return r.Verb == verb && strings.HasPrefix(r.RequestURI, uri) }) {
		users[r.User.Username]++
	}
	return users
}
