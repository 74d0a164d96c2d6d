//go:build linux

package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// controllerExample is the built examples/controller. It is a module of its own, as
// controller-runtime wants a newer client-go than ours: the library must build with that, too.
var controllerExample = sync.OnceValues(func() (string, error) {
	root, err := kubebin.Root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(suite.dir, "controller")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", bin, ".")
	cmd.Dir, cmd.Env = filepath.Join(root, "examples", "controller"), append(os.Environ(), "CGO_ENABLED=0")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := proc.StartCmd(cmd); err != nil {
		return "", fmt.Errorf("building examples/controller: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("building examples/controller: %w\n%s", err, out.String())
	}
	return bin, nil
})

// mayLead lets a user hold leases in a namespace, and tell of it in events.
func mayLead(t *testing.T, ns, user string) {
	t.Helper()
	_, err := suite.admin.RbacV1().Roles(ns).Create(t.Context(), &rbac.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "leader"},
		Rules: []rbac.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update", "patch"}},
			{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch", "update"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = suite.admin.RbacV1().RoleBindings(ns).Create(t.Context(), &rbac.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "leader"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: "leader"},
		Subjects:   []rbac.Subject{{Kind: rbac.UserKind, APIGroup: rbac.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// TestControllerRuntime: a manager of controller-runtime, with a kubeconfig that `execproxy
// kubeconfig` has printed. It stays leader and goes on working when its proxy is killed, and
// its metrics tell of that.
func TestControllerRuntime(t *testing.T) {
	t.Parallel()
	bin, err := controllerExample()
	must(t, err)
	h, ns, ctx := newHome(t), namespace(t), t.Context()
	mayLead(t, ns, "jane")
	cert, key := h.user("jane", "dev")
	kc := h.proxied("--kubeconfig", h.kubeconfig("plain", suite.cluster.API.URL, cert, key))
	address := fmt.Sprint("127.0.0.1:", freePort(t))
	b := h.start(bin, "--kubeconfig", kc, "--namespace", ns, "--metrics", address)
	ended := func() {
		t.Helper()
		select {
		case <-b.done:
			t.Fatalf("the controller ended with %d: %s", b.code, b.stderr)
		default:
		}
	}
	labelled := func(name string) {
		t.Helper()
		_, err := suite.admin.CoreV1().ConfigMaps(ns).Create(ctx, configMap(name, "1"), metav1.CreateOptions{})
		must(t, err)
		eventually(t, 2*patience, func() error {
			ended()
			m, err := suite.admin.CoreV1().ConfigMaps(ns).Get(ctx, name, metav1.GetOptions{})
			if err == nil && m.Labels["example.com/entries"] != "1" {
				err = fmt.Errorf("%s has the labels %v", name, m.Labels)
			}
			return err
		})
	}
	scrape := func(want ...string) {
		t.Helper()
		eventually(t, patience, func() error {
			ended()
			resp, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			for _, w := range want {
				if err == nil && !slices.Contains(strings.Split(string(body), "\n"), w) {
					err = fmt.Errorf("no %q in the metrics", w)
				}
			}
			return err
		})
	}
	labelled("one")
	scrape(`rest_client_exec_plugin_with_proxy_call_total{call_status="no_error",code="0"} 1`, "client_exec_proxy_errors 0",
		`leader_election_master_status{name="controller.example.com"} 1`)
	lease := func() (holder string, transitions int32) {
		t.Helper()
		l, err := suite.admin.CoordinationV1().Leases(ns).Get(ctx, "controller.example.com", metav1.GetOptions{})
		must(t, err)
		return *l.Spec.HolderIdentity, *l.Spec.LeaseTransitions
	}
	holder, _ := lease()
	for pid := range processes(h.dir) {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	labelled("two")
	scrape(`rest_client_exec_plugin_with_proxy_call_total{call_status="no_error",code="0"} 2`,
		`leader_election_master_status{name="controller.example.com"} 1`)
	if now, transitions := lease(); now != holder || transitions != 0 {
		t.Errorf("the lease went from %s to %s, %d times", holder, now, transitions)
	}
	for _, user := range audit(t, suite.cluster.API, "/apis/coordination.k8s.io/v1/namespaces/"+ns) {
		if user != "jane" && user != "admin" {
			t.Errorf("%s touched the lease", user)
		}
	}
	// Its end is the proxy's, and the lease is given back through it.
	b.signal(syscall.SIGTERM)
	if code := b.wait(); code != 0 {
		t.Errorf("the controller ended with %d: %s", code, b.stderr)
	}
	eventually(t, patience, func() error {
		if left := processes(h.dir); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	})
	if now, _ := lease(); now != "" {
		t.Errorf("%s still holds the lease", now)
	}
}
