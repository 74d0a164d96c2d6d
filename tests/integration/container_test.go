//go:build linux

package integration

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

// containerUser is the image's.
const containerUser = 65532

// image is the archive that `make image` makes.
var image = sync.OnceValues(func() (string, error) {
	if _, err := exec.LookPath("buildah"); err != nil {
		return "", &token.MissingError{What: "buildah", Package: "buildah"}
	}
	file := filepath.Join(suite.dir, "execproxy-image.tar")
	link, err := filepath.Rel(filepath.Join("..", ".."), file) // relative to the tree, which make puts before it
	if root, e := filepath.Abs(filepath.Join("..", "..")); e == nil {
		link, err = filepath.Rel(root, file)
	}
	if err != nil {
		return "", err
	}
	out, err := exec.Command("make", "--no-print-directory", "-C", "../..", "image", "IMAGE="+link, "GO=go").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make image: %w\n%s", err, out)
	}
	return file, nil
})

// imported gives a node our image, and one of a Kubernetes program.
func imported(t *testing.T, n *cluster.Node, program string) {
	t.Helper()
	file, err := image()
	need(t, err)
	must(t, n.Import(t.Context(), file))
	other := filepath.Join(t.TempDir(), "image.tar")
	must(t, cluster.ProgramImage(other, "localhost/"+program+":test", program, suite.cluster.Bin[program]))
	must(t, n.Import(t.Context(), other))
}

// proxyFiles writes a configuration, and a key of the image's user.
func proxyFiles(t *testing.T, dir, name, user string, groups ...string) {
	t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: user, Organizations: groups})
	must(t, err)
	cert, key, err := pair.Write(dir, name)
	must(t, err)
	must(t, os.Chmod(cert, 0o644))
	must(t, os.Chown(key, containerUser, containerUser))
	for file, text := range map[string]string{
		"ca.crt": string(suite.cluster.CA.PEM),
		"config.yaml": fmt.Sprintf("apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\nserver: %s\ncertificateAuthority: ca.crt\nauth: mtls\nkey: %s\ncert: %s\n",
			suite.cluster.API.URL, filepath.Base(key), filepath.Base(cert)),
	} {
		must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
}

// deployed is a manifest, one of ours, with what a test has to have otherwise.
func deployed(t *testing.T, name string, replace ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy/kubernetes", name))
	must(t, err)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(text), replace[i]) {
			t.Fatalf("%s has no %q", name, replace[i])
		}
	}
	return []byte(strings.NewReplacer(replace...).Replace(string(text)))
}

// TestStaticPod: the image that `make image` makes and the manifest, on a real node:
// kube-scheduler has its leader's lease and schedules, also when the proxy's
// container is killed, which it does not notice.
func TestStaticPod(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHome(t)
	config, state, manifests := h.path("config"), h.path("scheduler"), h.path("manifests")
	for _, dir := range []string{config, state, manifests} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, os.Chmod(state, 0o700))
	must(t, os.Chown(state, containerUser, containerUser))
	proxyFiles(t, config, "scheduler", "system:kube-scheduler")
	n, err := suite.cluster.StartNode(t.Context(), cluster.NodeOptions{Name: "127.0.0.22", Config: map[string]any{"staticPodPath": manifests}})
	needNode(t, err)
	t.Cleanup(n.Stop)
	imported(t, n, "kube-scheduler")

	lease := "scheduler-of-" + filepath.Base(h.dir)
	text := deployed(t, "static-pod.yaml",
		"/etc/kubernetes/execproxy, type", config+", type", "/var/lib/execproxy/kube-scheduler, type", state+", type",
		"execproxy:latest", "localhost/execproxy:latest", "kube-scheduler:v1.36.3", "localhost/kube-scheduler:test",
		"9440", strconv.Itoa(freePort(t)),
		"    - --bind-address=127.0.0.1\n", fmt.Sprintf("    - --bind-address=127.0.0.1\n    - --secure-port=%d\n    - --leader-elect-resource-name=%s\n", freePort(t), lease))
	must(t, os.WriteFile(filepath.Join(manifests, ".tmp"), text, 0o600))
	must(t, os.Rename(filepath.Join(manifests, ".tmp"), filepath.Join(manifests, "kube-scheduler.yaml")))
	t.Cleanup(func() { _ = os.Remove(filepath.Join(manifests, "kube-scheduler.yaml")) })

	pods := suite.admin.CoreV1().Pods("kube-system")
	mirror := func() (*core.Pod, error) { return pods.Get(t.Context(), "kube-scheduler-"+n.Name, metav1.GetOptions{}) }
	ready := func() error {
		p, err := mirror()
		if err != nil {
			return err
		}
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if !c.Ready || c.State.Running == nil {
				return fmt.Errorf("%s: %+v, %+v", c.Name, c.State, c.LastTerminationState.Terminated)
			}
		}
		if len(p.Status.ContainerStatuses) != 1 || len(p.Status.InitContainerStatuses) != 1 {
			return fmt.Errorf("the pod is %s", p.Status.Phase)
		}
		return nil
	}
	eventually(t, 3*patience, ready)
	renewed := func() time.Time {
		l, err := suite.admin.CoordinationV1().Leases("kube-system").Get(t.Context(), lease, metav1.GetOptions{})
		if err != nil || l.Spec.RenewTime == nil {
			return time.Time{}
		}
		return l.Spec.RenewTime.Time
	}
	leads := func(since time.Time) {
		t.Helper()
		eventually(t, 2*patience, func() error {
			if at := renewed(); !at.After(since) {
				return fmt.Errorf("the lease was renewed at %v, not after %v", at, since)
			}
			return nil
		})
	}
	leads(time.Time{})
	ns := namespace(t)
	scheduled := func(name string) {
		t.Helper()
		p := nodePod(n, ns, name, "exec sleep 1000000")
		p.Spec.NodeName, p.Spec.NodeSelector = "", map[string]string{"kubernetes.io/hostname": n.Name}
		p.Spec.Tolerations = []core.Toleration{{Operator: core.TolerationOpExists}} // no controller here takes not-ready off a new node
		runPod(t, p)
	}
	scheduled("before")

	p, err := mirror()
	must(t, err)
	id := strings.TrimPrefix(p.Status.InitContainerStatuses[0].ContainerID, "containerd://")
	file, err := os.ReadFile(filepath.Join(state, "kubeconfig"))
	must(t, err)
	out, err := n.Run(t.Context(), "ctr", "--address", "/run/containerd.sock", "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", id)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	killed := time.Now()
	eventually(t, 3*patience, func() error {
		p, err := mirror()
		if err == nil && p.Status.InitContainerStatuses[0].RestartCount == 0 {
			err = fmt.Errorf("the proxy's container is still the first")
		}
		if err != nil {
			return err
		}
		return ready()
	})
	leads(killed.Add(time.Second))
	scheduled("after")
	if p, err = mirror(); err != nil || p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("kube-scheduler was started again with the proxy: %v, %+v", err, p.Status.ContainerStatuses)
	}
	if again, err := os.ReadFile(filepath.Join(state, "kubeconfig")); err != nil || string(again) != string(file) {
		t.Errorf("the next proxy has another kubeconfig: %v", err)
	}
}

// TestDaemonSet: the API server takes the manifest, and its pods where the Pod
// Security level restricted is enforced; one runs and its agent is who the proxy is.
func TestDaemonSet(t *testing.T) {
	t.Parallel()
	needRoot(t)
	n, h, ns := node(t), newHome(t), namespace(t)
	text := deployed(t, "daemonset.yaml")
	admin := h.kubeconfig("admin", suite.cluster.API.URL, suite.cluster.Dir+"/admin.crt", suite.cluster.Dir+"/admin.key")
	label := map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"}
	strict, err := suite.admin.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "strict-", Labels: label}}, metav1.CreateOptions{})
	must(t, err)
	for _, name := range []string{"daemonset.yaml", "static-pod.yaml"} {
		space := strict.Name
		if name == "static-pod.yaml" {
			space = "kube-system"
		}
		r := h.kubectl(admin, "-n", space, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", h.file(name, string(deployed(t, name))))
		if r.code != 0 || strings.Contains(r.stderr, "Warning") {
			t.Errorf("%s: %s", name, r)
		}
	}
	var set apps.DaemonSet
	must(t, yaml.UnmarshalStrict(text, &set))
	no := false
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent", Labels: set.Spec.Template.Labels}, Spec: set.Spec.Template.Spec}
	pod.Spec.EnableServiceLinks = &no
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	_, err = suite.admin.CoreV1().Pods(strict.Name).Create(t.Context(), pod, dry)
	must(t, err)
	loose := pod.DeepCopy()
	loose.Spec.SecurityContext.SeccompProfile = nil
	if _, err := suite.admin.CoreV1().Pods(strict.Name).Create(t.Context(), loose, dry); !apierrors.IsForbidden(err) {
		t.Errorf("a pod without seccomp profile passes: %v", err)
	}

	// In the machine's network, where the API server of the tests is.
	dir := h.path("secret")
	must(t, os.Mkdir(dir, 0o755))
	proxyFiles(t, dir, "agent", "jane", "dev")
	secret := &core.Secret{ObjectMeta: metav1.ObjectMeta{Name: "agent-execproxy"}, Data: map[string][]byte{}}
	for _, name := range []string{"config.yaml", "ca.crt", "agent.crt", "agent.key"} {
		secret.Data[name], err = os.ReadFile(filepath.Join(dir, name))
		must(t, err)
	}
	_, err = suite.admin.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{})
	must(t, err)
	imported(t, n, "kubectl")
	port := freePort(t)
	must(t, yaml.UnmarshalStrict(deployed(t, "daemonset.yaml", "9440", strconv.Itoa(port), "execproxy:latest", "localhost/execproxy:latest", "agent:latest", "localhost/kubectl:test"), &set))
	pod.Namespace, pod.Spec = ns, set.Spec.Template.Spec
	pod.Spec.EnableServiceLinks, pod.Spec.NodeName, pod.Spec.HostNetwork = &no, n.Name, true
	pod.Spec.Containers[0].Args = []string{"auth", "whoami"}
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, core.EnvVar{Name: "HOME", Value: "/nowhere"})
	pod, err = suite.admin.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { deletePod(t, pod) })
	eventually(t, 3*patience, func() error {
		stream, err := suite.admin.CoreV1().Pods(ns).GetLogs(pod.Name, &core.PodLogOptions{Container: "agent"}).Stream(t.Context())
		if err != nil {
			now, e := suite.admin.CoreV1().Pods(ns).Get(context.Background(), pod.Name, metav1.GetOptions{})
			if e == nil {
				err = fmt.Errorf("%w; %+v", err, now.Status.InitContainerStatuses)
			}
			return err
		}
		defer func() { _ = stream.Close() }()
		log, err := io.ReadAll(stream)
		if err == nil && !strings.Contains(string(log), "jane") {
			err = fmt.Errorf("the agent says %q", log)
		}
		return err
	})
}
