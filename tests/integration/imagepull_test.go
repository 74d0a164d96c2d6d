//go:build linux

package integration

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
)

// TestImagePull: a real kubelet and containerd pull from a registry that wants the
// credentials which execproxy has for it, under the configuration that it prints.
func TestImagePull(t *testing.T) {
	t.Parallel()
	h, ns := newHome(t), namespace(t)
	r := &registry{}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String() // containerd takes plain HTTP of loopback alone

	first, second := "pin-2718", "pin-3141"
	password := h.file("password", first)
	rules := h.file("registries.yaml", fmt.Sprintf(`apiVersion: execproxy.io/v1alpha1
kind: ImageCredentialConfiguration
registries:
- match: %s/team
  username: robot
  passwordFile: %s
  cacheDuration: 0s
`, address, password))
	config := h.file("providers.yaml", h.execproxy("image-credentials", "--print-config", "--registries", rules).ok(t))
	must(t, os.Mkdir(h.path("providers"), 0o700))
	must(t, os.Symlink(h.bin, h.path("providers/execproxy-image-credentials")))
	n, err := suite.cluster.StartNode(t.Context(), cluster.NodeOptions{Name: "127.0.0.23", Args: []string{
		"--image-credential-provider-bin-dir=" + h.path("providers"), "--image-credential-provider-config=" + config,
	}})
	needNode(t, err)
	t.Cleanup(n.Stop)
	must(t, r.load(filepath.Join(n.Dir, "busybox.tar"), "etc/pulled"))

	pod := func(name, repository string) *core.Pod {
		p := nodePod(n, ns, name, "[ -e /etc/pulled ] && exec sleep 1000000")
		p.Spec.Containers[0].Image = address + "/" + repository + ":1"
		p.Spec.Containers[0].ImagePullPolicy = core.PullAlways
		return p
	}
	r.accept("robot", first)
	runPod(t, pod("first", "team/shell"))
	// Whoever has the daemon's answer for later has the wrong one now.
	must(t, os.WriteFile(password, []byte(second), 0o600))
	r.accept("robot", second)
	runPod(t, pod("second", "team/shell"))
	served := r.taken()
	for _, kind := range []string{"manifests", "blobs"} {
		if !slices.Contains(served, "robot gets "+kind+" of team/shell") {
			t.Errorf("no %s were pulled: %q", kind, served)
		}
	}
	if i := slices.IndexFunc(served, func(s string) bool { return strings.HasPrefix(s, "robot is refused") }); i >= 0 {
		t.Errorf("a password was wrong: %q", served)
	}

	// No rule is for this one, though it is in the same registry.
	p, err := suite.admin.CoreV1().Pods(ns).Create(t.Context(), pod("third", "teammate/shell"), metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { deletePod(t, p) })
	eventually(t, 2*patience, func() error {
		now, err := suite.admin.CoreV1().Pods(ns).Get(t.Context(), p.Name, metav1.GetOptions{})
		must(t, err)
		for _, c := range now.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil && w.Reason == "ErrImagePull" || w != nil && w.Reason == "ImagePullBackOff" {
				return nil
			}
		}
		return fmt.Errorf("it is %s: %v", now.Status.Phase, now.Status.ContainerStatuses)
	})
	for _, s := range r.taken() {
		if s != "nobody is refused manifests of teammate/shell" {
			t.Errorf("for the third pod %s", s)
		}
	}

	var daemons []int
	for pid, line := range processes(h.dir) {
		if strings.Contains(line, "image-credentials-daemon") {
			daemons = append(daemons, pid)
		}
	}
	if len(daemons) != 1 {
		t.Fatalf("daemons: %v, want one", daemons)
	}
	logs, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/var/lib/execproxy-images/execproxy/log/*.log", daemons[0]))
	must(t, err)
	if len(logs) != 1 {
		t.Errorf("the daemon's logs are %q", logs)
	}
	for _, path := range append(logs, n.KubeletLog, n.ContainerdLog) {
		text, err := os.ReadFile(path)
		must(t, err)
		if strings.Contains(string(text), first) || strings.Contains(string(text), second) {
			t.Errorf("a password is in %s", path)
		}
	}
}
