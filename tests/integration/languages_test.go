//go:build linux

package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

// language is a client library with a program of the tests' own on it, which
// lists, watches and creates.
type language struct {
	name    string
	command func(t *testing.T) []string
	env     func(t *testing.T) string
}

var languages = []language{
	{"python", func(t *testing.T) []string {
		const python = "/usr/bin/python3" // Debian's packages are not seen by another
		if _, err := os.Stat("/usr/lib/python3/dist-packages/kubernetes"); err != nil {
			need(t, &token.MissingError{What: "kubernetes for Python", Package: "python3-kubernetes"})
		}
		return []string{python, script(t, "client.py")}
	}, func(*testing.T) string { return "PYTHONDONTWRITEBYTECODE=1" }},
	{"javascript", func(t *testing.T) []string {
		if _, err := exec.LookPath("node"); err != nil {
			need(t, &token.MissingError{What: "node", Package: "nodejs"})
		}
		return []string{"node", script(t, "client.mjs")}
	}, func(t *testing.T) string {
		entry, err := kubebin.JavaScript()
		wanted(t, err)
		return "CLIENT_NODE=" + entry
	}},
}

func script(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata/languages", name))
	must(t, err)
	return path
}

// wanted fails the test for an error, and skips it for a client that was not
// built. In CI that fails, too.
func wanted(t *testing.T, err error) {
	t.Helper()
	var missing *kubebin.MissingError
	if errors.As(err, &missing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	must(t, err)
}

// TestLanguages: the client libraries of other languages list, watch and create
// as the user, by way of a kubeconfig and by way of run.
func TestLanguages(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			t.Run("kubeconfig", func(t *testing.T) {
				t.Parallel()
				h := newHome(t)
				cert, key := h.user("jane", "dev")
				plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
				printed := h.execproxy("kubeconfig", "--kubeconfig", plain, "--command", h.bin, "--provide-cluster-info=false").ok(t)
				kc := h.file("kubeconfig", printed)
				again := func() { h.execproxy("stop", "--all").ok(t) }
				l.everyday(t, h, kc, again, false)
				// The same kubeconfig serves those that need no arguments.
				if got := whoami(t, h, kc); got != "jane" {
					t.Errorf("kubectl auth whoami: %q", got)
				}
				// And it can be read again, for a proxy or a kubeconfig of another kind.
				r := h.execproxy("run", "--kubeconfig", kc, "--", suite.kubectl, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
				if r.ok(t) != "jane" {
					t.Errorf("run with it: %s", r)
				}
			})
			t.Run("run", func(t *testing.T) {
				t.Parallel()
				h := newHome(t)
				cert, key := h.user("jane", "dev")
				plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
				l.everyday(t, h, plain, func() {}, true, h.bin, "run", "--kubeconfig", plain, "--")
			})
		})
	}
}

// everyday is what a program in this language does, behind words that start it.
// again happens while it holds what it has loaded; then it goes on, or it has to
// load its kubeconfig once more.
func (l language) everyday(t *testing.T, h *home, kubeconfig string, again func(), goesOn bool, before ...string) {
	t.Helper()
	ns, ctx := namespace(t), t.Context()
	maps := suite.admin.CoreV1().ConfigMaps(ns)
	_, err := maps.Create(ctx, configMap("first", "1"), metav1.CreateOptions{})
	must(t, err)
	cmd := h.command(append(append(before, l.command(t)...), ns)...)
	cmd.Env = append(cmd.Env, "KUBECONFIG="+kubeconfig, l.env(t))
	b := h.startCmd(cmd)
	b.stdout.await(t, "user jane\n")
	listed := b.stdout.await(t, "\nlisted ")
	if !strings.Contains(listed, "\nlisted first ") && !strings.Contains(listed, "\nlisted first\n") {
		t.Errorf("it listed: %s", listed)
	}
	b.stdout.await(t, "created\n")
	b.stdout.await(t, "event ADDED made-by-"+l.name+"\n")
	if _, err := maps.Get(ctx, "made-by-"+l.name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	// Events come when they happen, not when the watch ends.
	for _, name := range []string{"second", "third"} {
		_, err := maps.Create(ctx, configMap(name, "1"), metav1.CreateOptions{})
		must(t, err)
		b.stdout.await(t, "event ADDED "+name+"\n")
	}
	_, err = maps.Create(ctx, configMap("last", "1"), metav1.CreateOptions{})
	must(t, err)
	b.stdout.await(t, "event ADDED last\n")
	again()
	_, err = b.stdin.Write([]byte("\n"))
	must(t, err)
	if code := b.wait(); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, b.stdout, b.stderr)
	}
	out := b.stdout.String()
	if strings.Contains(out, "\nagain ok\n") != goesOn || !strings.HasSuffix(out, "\nloaded again ok\n") {
		t.Errorf("after its proxy's end, if it ended: %s", out)
	}
	t.Logf("%s", out)
}

// TestLanguagesTellNothing: these libraries hand their plugin nothing of the
// cluster. It says so, and what to do, where a person sees it.
func TestLanguagesTellNothing(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			cert, key := h.user("jane", "dev")
			plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
			kc := h.file("kubeconfig", h.execproxy("kubeconfig", "--kubeconfig", plain, "--command", h.bin).ok(t))
			cmd := h.command(append(l.command(t), "default")...)
			cmd.Env = append(cmd.Env, "KUBECONFIG="+kc, l.env(t))
			r := h.do(cmd)
			if r.code == 0 || !strings.Contains(r.stdout+r.stderr, "--provide-cluster-info=false") {
				t.Errorf("with what the others take: %s", r)
			}
		})
	}
}

// TestHelm: a release comes, changes and goes, by way of a kubeconfig and by way
// of run.
func TestHelm(t *testing.T) {
	t.Parallel()
	helm, err := kubebin.Helm()
	wanted(t, err)
	for _, way := range []string{"kubeconfig", "run"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			h, ns := newHome(t), namespace(t)
			cert, key := h.user("jane", "system:masters") // releases are secrets
			plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
			kc := plain
			var before []string
			if way == "run" {
				before = []string{h.bin, "run", "--kubeconfig", plain, "--"}
			} else {
				kc = h.proxied("--kubeconfig", plain)
			}
			do := func(args ...string) string {
				t.Helper()
				cmd := h.command(append(append(before, helm, "--namespace", ns), args...)...)
				cmd.Env = append(cmd.Env, "KUBECONFIG="+kc)
				return h.do(cmd).ok(t)
			}
			text := func() string {
				t.Helper()
				m, err := suite.admin.CoreV1().ConfigMaps(ns).Get(t.Context(), "web-tiny", metav1.GetOptions{})
				must(t, err)
				return m.Data["text"]
			}
			chart := script(t, "chart")
			do("install", "web", chart, "--wait", "--timeout", "30s")
			if got := text(); got != "one" {
				t.Errorf("installed: %q", got)
			}
			if out := do("list", "--output", "json"); !strings.Contains(out, `"name":"web"`) || !strings.Contains(out, `"status":"deployed"`) {
				t.Errorf("list: %s", out)
			}
			do("upgrade", "web", chart, "--set", "text=two", "--wait", "--timeout", "30s")
			if got := text(); got != "two" {
				t.Errorf("upgraded: %q", got)
			}
			if out := do("history", "web", "--output", "json"); !strings.Contains(out, `"revision":2`) {
				t.Errorf("history: %s", out)
			}
			do("uninstall", "web", "--wait", "--timeout", "30s")
			if _, err := suite.admin.CoreV1().ConfigMaps(ns).Get(t.Context(), "web-tiny", metav1.GetOptions{}); err == nil {
				t.Error("uninstalled, and the configmap is there")
			}
		})
	}
}
