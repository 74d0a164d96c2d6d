//go:build linux

package integration

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeconfig writes a plain kubeconfig for a user with a certificate, straight
// to the server.
func (h *home) kubeconfig(name, server, cert, key string) string {
	h.t.Helper()
	return h.file(name, fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: work
contexts:
- {name: work, context: {cluster: prod, user: me}}
clusters:
- {name: prod, cluster: {server: %q, certificate-authority: %q}}
users:
- {name: me, user: {client-certificate: %q, client-key: %q}}
`, server, suite.cluster.Dir+"/ca.crt", cert, key))
}

// proxied writes what `execproxy kubeconfig` makes of a kubeconfig.
func (h *home) proxied(args ...string) string {
	h.t.Helper()
	listen := fmt.Sprintf("https://127.0.0.1:%d", freePort(h.t))
	out := h.execproxy(append([]string{"kubeconfig", "--command", h.bin, "--listen", listen}, args...)...).ok(h.t)
	return h.file("proxied.kubeconfig", out)
}

func whoami(t *testing.T, h *home, kubeconfig string, args ...string) string {
	t.Helper()
	out := h.kubectl(kubeconfig, append([]string{"auth", "whoami", "-o", "json"}, args...)...).ok(t)
	var review struct {
		Status struct{ UserInfo struct{ Username string } }
	}
	must(t, json.Unmarshal([]byte(out), &review))
	return review.Status.UserInfo.Username
}

const manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {k: %q}\n"

func TestKubectl(t *testing.T) {
	t.Parallel()
	h, ns := newHome(t), namespace(t)
	cert, key := h.user("jane", "dev")
	plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
	kc := h.proxied("--kubeconfig", plain, "--context", "work")
	everyday(t, h, kc, ns, "jane")

	p := h.proxy()
	if p.Handshakes.Full != 1 || p.NotAfter.IsZero() || p.Server != suite.cluster.API.URL {
		t.Errorf("status after all of that: %+v; want one full handshake, the server and the certificate's expiry", p)
	}
}

// everyday is what a person does with kubectl.
func everyday(t *testing.T, h *home, kc, ns, user string) {
	t.Helper()
	if got := whoami(t, h, kc); got != user {
		t.Errorf("auth whoami: %q, want %s", got, user)
	}
	if got := whoami(t, h, kc, "--as=bob"); got != "bob" {
		t.Errorf("auth whoami --as=bob: %q", got)
	}
	if out := h.kubectl(kc, "get", "namespaces", "-o", "name").ok(t); !strings.Contains(out, "namespace/"+ns+"\n") {
		t.Errorf("get namespaces: %s", out)
	}
	watch := h.start(suite.kubectl, "--kubeconfig="+kc, "-n", ns, "get", "configmaps", "--watch", "-o", "name")
	file := h.file("a.yaml", fmt.Sprintf(manifest, "a", "1"))
	h.kubectl(kc, "-n", ns, "apply", "-f", file).ok(t)
	watch.stdout.await(t, "configmap/a\n")
	h.file("a.yaml", fmt.Sprintf(manifest, "a", "2"))
	if out := h.kubectl(kc, "-n", ns, "apply", "-f", file).ok(t); !strings.Contains(out, "configured") {
		t.Errorf("second apply: %s", out)
	}
	if out := h.kubectl(kc, "-n", ns, "get", "configmap", "a", "-o", "jsonpath={.data.k}").ok(t); out != "2" {
		t.Errorf("applied 2, got %q", out)
	}
	h.kubectl(kc, "-n", ns, "apply", "-f", h.file("b.yaml", fmt.Sprintf(manifest, "b", "1"))).ok(t)
	watch.stdout.await(t, "configmap/b\n")

	// bob may read and not write.
	h.kubectl(kc, "-n", ns, "--as=bob", "get", "configmap", "a").ok(t)
	if r := h.kubectl(kc, "-n", ns, "--as=bob", "delete", "configmap", "a"); r.code == 0 || !strings.Contains(r.stderr, `User "bob" cannot delete`) {
		t.Errorf("delete --as=bob: %s", r)
	}
	h.kubectl(kc, "-n", ns, "delete", "configmap", "a").ok(t)
	if _, err := suite.admin.CoreV1().ConfigMaps(ns).Get(t.Context(), "a", metav1.GetOptions{}); err == nil {
		t.Error("configmap a is there after kubectl deleted it")
	}
	watch.signal(syscall.SIGINT)
	watch.wait()
}

func TestKubectlTwentyCallsOneHandshake(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
	kc := h.proxied("--kubeconfig", plain)
	h.kubectl(kc, "get", "namespaces").ok(t)
	first := h.proxy()
	for range 19 {
		h.kubectl(kc, "get", "namespaces", "-o", "name").ok(t)
	}
	last := h.proxy()
	if last.PID != first.PID || last.ID != first.ID || last.Handshakes.Full != 1 {
		t.Errorf("after one call: %+v\nafter twenty: %+v\nwant one daemon and one full handshake", first, last)
	}
	if last.Requests < 20 {
		t.Errorf("%d requests counted in twenty calls", last.Requests)
	}
}

// TestKubeconfig: what the command prints, and that it changes no file.
func TestKubeconfig(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
	before, err := os.ReadFile(plain)
	must(t, err)
	first := h.execproxy("kubeconfig", "--kubeconfig", plain, "--context", "work", "--command", h.bin)
	if first.ok(t); first.stderr != "" {
		t.Errorf("stderr: %s", first.stderr)
	}
	if again := h.execproxy("kubeconfig", "--kubeconfig", plain, "--context", "work", "--command", h.bin); again.stdout != first.stdout {
		t.Errorf("the second time it prints something else:\n%s\n%s", first.stdout, again.stdout)
	}
	if after, _ := os.ReadFile(plain); string(after) != string(before) {
		t.Error("the kubeconfig it read is changed")
	}
	config, err := clientcmd.Load([]byte(first.stdout))
	must(t, err)
	context := config.Contexts[config.CurrentContext]
	cluster, user := config.Clusters[context.Cluster], config.AuthInfos[context.AuthInfo]
	u, err := url.Parse(cluster.Server)
	must(t, err)
	port, _ := strconv.Atoi(u.Port())
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "https" || ip == nil || !ip.IsLoopback() || port < 20000 || port > 29999 {
		t.Errorf("server %s, want https on loopback with a port from 20000 to 29999", cluster.Server)
	}
	if poolOf(cluster.CertificateAuthorityData).Equal(poolOf(nil)) || cluster.Extensions["client.authentication.k8s.io/exec"] == nil {
		t.Errorf("cluster without CA or extension: %s", first.stdout)
	}
	if e := user.Exec; e == nil || e.Command != h.bin || !e.ProvideClusterInfo || len(e.Args) != 1 || e.Args[0] != "exec" || e.InstallHint == "" {
		t.Errorf("user: %+v", user.Exec)
	}
	if len(user.ClientKeyData) > 0 || user.Token != "" || user.ClientKey != "" {
		t.Error("the user has a credential beside the plugin")
	}
	kc := h.file("kc", first.stdout)
	if got := whoami(t, h, kc); got != "jane" {
		t.Errorf("auth whoami: %q", got)
	}
	// A token makes kubectl skip the plugin. It is refused, and the answer says why;
	// kubectl itself shows that only of raw requests.
	if r := h.kubectl(kc, "--token=something", "get", "namespaces"); r.code != 1 {
		t.Errorf("kubectl --token: %s", r)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: poolOf(cluster.CertificateAuthorityData)}}}
	req, err := http.NewRequest(http.MethodGet, cluster.Server+"/version", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer something")
	resp, err := client.Do(req)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(string(body), "--token") {
		t.Errorf("a token without the pair: %s %s", resp.Status, body)
	}
}

// TestKubeconfigFlags: identity by flags instead of the kubeconfig's user.
func TestKubeconfigFlags(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	other, otherKey := h.user("bob")
	plain := h.kubeconfig("plain", suite.cluster.API.URL, other, otherKey)
	kc := h.proxied("--kubeconfig", plain, "--auth", "mtls", "--cert", cert, "--key", key)
	if got := whoami(t, h, kc); got != "jane" {
		t.Errorf("auth whoami: %q, want the user of the flags", got)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
	via := func(args ...string) result {
		return h.execproxy(append([]string{"run", "--kubeconfig", plain, "--context", "work", "--"}, args...)...)
	}
	nothing := func() {
		t.Helper()
		if files, left := h.remains(), processes(h.dir); len(files)+len(left) > 0 {
			t.Errorf("left behind: %q, %v", files, left)
		}
	}
	if out := via(suite.kubectl, "get", "namespaces", "-o", "name").ok(t); !strings.Contains(out, "namespace/default\n") {
		t.Errorf("get namespaces: %s", out)
	}
	nothing()
	byFlags := h.execproxy("run", "--server", suite.cluster.API.URL, "--certificate-authority", suite.cluster.Dir+"/ca.crt",
		"--auth", "mtls", "--cert", cert, "--key", key, "--", suite.kubectl, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}").ok(t)
	if byFlags != "jane" {
		t.Errorf("auth whoami: %q", byFlags)
	}
	nothing()
	for script, want := range map[string]int{"exit 7": 7, "kill -TERM $$": 143, "kill -KILL $$": 137} {
		if r := via("sh", "-c", script); r.code != want || r.stdout != "" {
			t.Errorf("sh -c %q: %s; want exit code %d", script, r, want)
		}
	}
	if r := via(suite.kubectl, "get", "nosuchthings"); r.code != 1 {
		t.Errorf("kubectl's own failure is our exit code: %s", r)
	}
	if r := via(h.path("no-such-program")); r.code == 0 || !strings.Contains(r.stderr, "no-such-program") {
		t.Errorf("a program that is not there: %s", r)
	}
	nothing()
	out := via("sh", "-c", `stat -c '%a %n' "$KUBECONFIG" "$(dirname "$KUBECONFIG")"; cat "$KUBECONFIG"`).ok(t)
	if f := strings.Fields(out); len(f) < 4 || f[0] != "600" || f[2] != "700" {
		t.Errorf("the temporary kubeconfig and its directory: %s", out)
	} else if strings.Contains(out, "PRIVATE KEY") && strings.Contains(out, key) {
		t.Errorf("the temporary kubeconfig names the user's key: %s", out)
	}
	nothing()
}

// TestRunForwardsSignals: the child decides what a signal does, then all is gone.
func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		b := h.start(h.bin, "run", "--kubeconfig", plain, "--", "sh", "-c",
			`trap 'echo caught; exit 9' TERM INT HUP; echo waiting; while :; do sleep 0.05; done`)
		b.stdout.await(t, "waiting\n")
		must(t, b.cmd.Process.Signal(s)) // to execproxy alone, not to its group
		if code := b.wait(); code != 9 || !strings.Contains(b.stdout.String(), "caught") {
			t.Errorf("%v: exit code %d, stdout %s, stderr %s; want 9 from the child's handler", s, code, b.stdout, b.stderr)
		}
		if files, left := h.remains(), processes(h.dir); len(files)+len(left) > 0 {
			t.Errorf("%v: left behind: %q, %v", s, files, left)
		}
	}
}
