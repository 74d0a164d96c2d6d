//go:build linux

package integration

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
)

// deploy creates a deployment whose pods run on a real node.
func (p *controlPlane) deploy(t *testing.T, ns string, node string, replicas int32) {
	t.Helper()
	pod := nodePod(&cluster.Node{}, ns, "", "echo up; exec sleep 1000000").Spec
	pod.NodeSelector = map[string]string{"kubernetes.io/hostname": node}
	labels := map[string]string{"app": "web"}
	_, err := p.admin.AppsV1().Deployments(ns).Create(t.Context(), &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: apps.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

func (p *controlPlane) scale(t *testing.T, ns string, replicas int32) {
	t.Helper()
	s, err := p.admin.AppsV1().Deployments(ns).GetScale(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	s.Spec.Replicas = replicas
	_, err = p.admin.AppsV1().Deployments(ns).UpdateScale(t.Context(), "web", s, metav1.UpdateOptions{})
	must(t, err)
}

// run waits until as many pods run.
func (p *controlPlane) run(t *testing.T, ns string, want int) {
	t.Helper()
	eventually(t, 3*patience, func() error {
		pods, err := p.admin.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		running, states := 0, []string{}
		for _, pod := range pods.Items {
			if pod.Status.Phase == core.PodRunning && pod.DeletionTimestamp == nil {
				running++
			}
			states = append(states, fmt.Sprintf("%s %s %v", pod.Name, pod.Status.Phase, pod.Status.Conditions))
		}
		if running != want || len(pods.Items) != want {
			return fmt.Errorf("%d of %d pods run: %s", running, want, strings.Join(states, "; "))
		}
		return nil
	})
}

// renewed waits for the next renewal of a node's lease.
func (p *controlPlane) renewed(t *testing.T, node string, limit time.Duration) time.Time {
	t.Helper()
	read := func() (time.Time, error) {
		l, err := p.admin.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return time.Time{}, err
		}
		return l.Spec.RenewTime.Time, nil
	}
	var before, now time.Time
	eventually(t, limit, func() (err error) { before, err = read(); return err })
	eventually(t, limit, func() (err error) {
		if now, err = read(); err == nil && !now.After(before) {
			err = fmt.Errorf("the lease of node %s was renewed last at %v", node, now)
		}
		return err
	})
	return now
}

// neverNotReady watches a node from now on; what it returns says how often it was
// seen, and what else than ready it was.
func (p *controlPlane) neverNotReady(t *testing.T, node string) (stop func() (int, []string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w, err := p.admin.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	must(t, err)
	seen, bad, done := 0, []string{}, make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			n, ok := e.Object.(*core.Node)
			if !ok {
				continue
			}
			seen++
			for _, c := range n.Status.Conditions {
				if c.Type == core.NodeReady && c.Status != core.ConditionTrue {
					bad = append(bad, fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message))
				}
			}
		}
	}()
	return func() (int, []string) { cancel(); w.Stop(); <-done; return seen, bad }
}

const nodeUser = "system:node:127.0.0.1"

// TestWholePlane: kubelet, kube-scheduler and kube-controller-manager, all of them
// through execproxy: as sidecars first, then as exec plugins.
func TestWholePlane(t *testing.T) {
	t.Parallel()
	p := newControlPlane(t)
	ns := p.namespace(t)

	hk, hs, hc := newHome(t), newHome(t), newHome(t)
	net, url := newHole(t, p.API.URL)
	kubelet := hk.sidecar(p.flags(hk, url, nodeUser, "system:nodes")...)
	scheduling := hs.sidecar(p.flags(hs, p.API.URL, "system:kube-scheduler")...)
	controlling := hc.sidecar(append(p.flags(hc, p.API.URL, "system:kube-controller-manager"), "--foreign-authorization", "passthrough")...)

	// The kubelet's kubeconfig changes when the plugin's turn comes.
	kubeconfig := hk.path("kubelet.kubeconfig")
	must(t, os.Symlink(kubelet.kubeconfig, kubeconfig))
	n, err := p.StartNode(t.Context(), cluster.NodeOptions{
		Kubeconfig: kubeconfig, Config: map[string]any{"rotateCertificates": false}, Env: hk.command("true").Env,
	})
	needNode(t, err)
	t.Cleanup(func() {
		hk.execproxy("stop", "--all") // while the kubelet's plugin is a process of the node's
		n.Stop()
	})

	scheduler := hs.start(p.scheduler(t, scheduling.kubeconfig, quick...)...)
	manager := hc.start(p.controllers(t, controlling.kubeconfig, quick...)...)
	leads := []*coordination.Lease{p.leads(t, "kube-scheduler"), p.leads(t, "kube-controller-manager")}
	p.deploy(t, ns, n.Name, 1)
	p.run(t, ns, 1)

	p.answers(t, ns)

	pid := n.Kubelet().PID()
	for _, s := range []*sidecar{kubelet, scheduling, controlling} {
		s.kill()
		s.again()
	}
	for _, l := range leads {
		p.stillLeads(t, l)
	}
	p.scale(t, ns, 2)
	p.run(t, ns, 2)
	p.renewed(t, n.Name, patience)

	// 40 s in which what the kubelet sends gets lost. It begins right after a
	// renewal; the node has 50 s from there.
	stop := p.neverNotReady(t, n.Name)
	last := p.renewed(t, n.Name, patience)
	net.cut()
	begin := time.Now()
	<-time.After(40 * time.Second)
	net.mend()
	mended := time.Now()
	next := p.renewed(t, n.Name, patience)
	t.Logf("the lease was renewed %v before the hole, and %v after its %v", begin.Sub(last), next.Sub(mended), mended.Sub(begin))
	p.scale(t, ns, 3)
	p.run(t, ns, 3)
	if seen, bad := stop(); seen == 0 || len(bad) > 0 {
		t.Errorf("in %d events the node was %q", seen, bad)
	}
	must(t, n.Ready(t.Context()))

	scheduler.alive(t)
	manager.alive(t)
	if now := n.Kubelet().PID(); now != pid {
		t.Errorf("the kubelet was process %d and is %d", pid, now)
	}
	p.isItself(t, ns, n.Name)

	// The same with the plugin. Its daemon is killed once, too.
	for _, s := range []*sidecar{kubelet, scheduling, controlling} {
		s.signal(syscall.SIGTERM)
		s.wait()
	}
	n.StopKubelet()
	scheduler.signal(syscall.SIGKILL)
	manager.signal(syscall.SIGKILL)
	plugin := func(h *home, url string, more ...string) string {
		cert, key := h.path("component.crt"), h.path("component.key")
		return h.proxied(append([]string{"--server", url, "--certificate-authority", p.key("ca.crt"), "--auth", "mtls", "--cert", cert, "--key", key}, more...)...)
	}
	must(t, os.Remove(kubeconfig))
	must(t, os.Symlink(plugin(hk, url), kubeconfig))
	must(t, n.StartKubelet())
	scheduler = hs.start(p.scheduler(t, plugin(hs, p.API.URL), quick...)...)
	manager = hc.start(p.controllers(t, plugin(hc, p.API.URL, "--foreign-authorization", "passthrough"), quick...)...)
	p.renewed(t, n.Name, 2*patience)
	p.scale(t, ns, 4)
	p.run(t, ns, 4)
	for name, h := range map[string]*home{"kubelet": hk, "kube-scheduler": hs, "kube-controller-manager": hc} {
		if r := h.proxy(); r.Requests == 0 || r.Handshakes.Full == 0 {
			t.Errorf("the proxy of %s has nothing to do: %+v", name, r)
		}
	}
	p.answers(t, ns)
	scheduler.alive(t)
	manager.alive(t)
	p.isItself(t, ns, n.Name)
}

// answers reads a pod's log. The kubelet asks the API server, through its proxy,
// whether whoever reads it may.
func (p *controlPlane) answers(t *testing.T, ns string) {
	t.Helper()
	pods, err := p.admin.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	eventually(t, patience, func() error {
		text, err := p.admin.CoreV1().Pods(ns).GetLogs(pods.Items[0].Name, &core.PodLogOptions{}).DoRaw(t.Context())
		if err == nil && string(text) != "up\n" {
			err = fmt.Errorf("the pod's log is %q", text)
		}
		return err
	})
}

// isItself finds in the audit log that each component did its own work under its
// own name.
func (p *controlPlane) isItself(t *testing.T, ns, node string) {
	t.Helper()
	const account = "system:serviceaccount:kube-system:"
	for _, want := range []struct{ verb, uri, user string }{
		{"create", "/api/v1/namespaces/" + ns + "/pods/", "system:kube-scheduler"}, // bindings
		{"create", "/apis/apps/v1/namespaces/" + ns + "/replicasets", account + "deployment-controller"},
		{"patch", "/api/v1/nodes/" + node + "/status", nodeUser},
		{"update", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + node, nodeUser},
		{"update", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler", "system:kube-scheduler"},
		{"update", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager", "system:kube-controller-manager"},
	} {
		users := by(t, p.API, want.verb, want.uri)
		if len(users) != 1 || users[want.user] == 0 {
			t.Errorf("%s %s was done by %v, want %s alone", want.verb, want.uri, users, want.user)
		}
	}
	created := map[string]int{}
	for _, r := range records(t, p.API, func(r record) bool { return r.Verb == "create" && r.RequestURI == "/api/v1/namespaces/"+ns+"/pods" }) {
		created[r.User.Username]++
	}
	if len(created) != 1 || created[account+"replicaset-controller"] == 0 {
		t.Errorf("pods were made by %v", created)
	}
}
