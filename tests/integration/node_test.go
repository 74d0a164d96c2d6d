//go:build linux

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
)

// shared is the node that all tests use together; the first one that needs it
// waits for its start.
var shared = struct {
	node  atomic.Pointer[cluster.Node]
	start func() (*cluster.Node, error)
}{}

func init() {
	shared.start = sync.OnceValues(func() (*cluster.Node, error) {
		n, err := suite.cluster.StartNode(context.Background(), cluster.NodeOptions{})
		if err == nil {
			shared.node.Store(n)
		}
		return n, err
	})
}

// stopNode ends the shared node, where a test has needed one.
func stopNode() {
	if n := shared.node.Load(); n != nil {
		n.Stop()
	}
}

// node returns the shared node.
func node(t *testing.T) *cluster.Node {
	t.Helper()
	n, err := shared.start()
	needNode(t, err)
	return n
}

// needNode skips where a node lacks something, and fails where CI is set.
func needNode(t *testing.T, err error) {
	t.Helper()
	var missing *cluster.MissingError
	if (errors.As(err, &missing) || errors.Is(err, cluster.ErrNoCgroups)) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	must(t, err)
}

// nodePod describes a pod on a node, without a scheduler: a shell that runs a script.
func nodePod(n *cluster.Node, ns, name, script string) *core.Pod {
	no, now := false, int64(0)
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec: core.PodSpec{
			NodeName: n.Name, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			TerminationGracePeriodSeconds: &now,
			Containers: []core.Container{{
				Name: "c", Image: cluster.Busybox, ImagePullPolicy: core.PullNever, Command: []string{"sh", "-c", script},
			}},
		},
	}
}

// runPod creates a pod and waits until all of its containers run. It is deleted
// with the test.
func runPod(t *testing.T, p *core.Pod) *core.Pod {
	t.Helper()
	pods := suite.admin.CoreV1().Pods(p.Namespace)
	p, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { deletePod(t, p) })
	eventually(t, 2*patience, func() error {
		now, err := pods.Get(t.Context(), p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		p = now
		if p.Status.Phase != core.PodRunning {
			return fmt.Errorf("pod %s is %s: %s%v", p.Name, p.Status.Phase, p.Status.Message, p.Status.ContainerStatuses)
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running == nil {
				return fmt.Errorf("container %s of pod %s: %v", c.Name, p.Name, c.State)
			}
		}
		return nil
	})
	return p
}

func deletePod(t *testing.T, p *core.Pod) {
	t.Helper()
	now := int64(0)
	err := suite.admin.CoreV1().Pods(p.Namespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil {
		t.Errorf("deleting pod %s: %v", p.Name, err)
	}
}

// TestNode: the node itself, past execproxy.
func TestNode(t *testing.T) {
	t.Parallel()
	n, ns, h := node(t), namespace(t), newHome(t)
	p := runPod(t, nodePod(n, ns, "p", "echo started; exec sleep 1000000"))
	if p.Status.PodIP == "" {
		t.Errorf("the pod has no address: %+v", p.Status)
	}
	admin := h.kubeconfig("admin", suite.cluster.API.URL, suite.cluster.Dir+"/admin.crt", suite.cluster.Dir+"/admin.key")
	if out := h.kubectl(admin, "-n", ns, "exec", "p", "--", "cat", "/etc/hostname").ok(t); out != "p\n" {
		t.Errorf("the pod's name is %q", out)
	}
	eventually(t, patience, func() error {
		if out := h.kubectl(admin, "-n", ns, "logs", "p").ok(t); out != "started\n" {
			return fmt.Errorf("its log is %q", out)
		}
		return nil
	})
}
