//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// answered is what a plain exec plugin prints.
type answered struct {
	APIVersion, Kind string
	Status           struct {
		ExpirationTimestamp                         time.Time
		Token, ClientCertificateData, ClientKeyData string
		ProxyConfig                                 *struct{}
	}
}

func (h *home) answer(r result) (a answered) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(r.ok(h.t)), &a); err != nil || r.stderr != "" || strings.Count(r.stdout, "\n") != 1 {
		h.t.Fatalf("%v: %s", err, r)
	}
	return a
}

// TestDirect: kubectl talks to the API server itself, with a token that somebody else's
// plugin handed out once, to all of them.
func TestDirect(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	p := h.issuer("direct-a")
	b.takes("jane", "direct-a")
	kc := h.directed("--kubeconfig", p.kubeconfig(b.URL))
	config, err := clientcmd.LoadFromFile(kc)
	must(t, err)
	user := config.AuthInfos["me"].Exec
	if c := config.Clusters["prod"]; c.Server != b.URL || c.Extensions["client.authentication.k8s.io/exec"] != nil || user.InstallHint == "" || user.ProvideClusterInfo {
		t.Errorf("the kubeconfig: %+v, %+v", c, user)
	}
	// Cold, all at once.
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			if got := whoami(t, h, kc); got != "jane" {
				t.Errorf("auth whoami: %q", got)
			}
		})
	}
	all.Wait()
	if n := p.calls(); n != 1 {
		t.Errorf("12 kubectl ran the plugin behind %d times", n)
	}
	if s := h.proxy(); s.Auth != "exec" || len(s.Listeners) != 0 || s.Requests != 0 {
		t.Errorf("what keeps the token: %+v", s)
	}
	for _, path := range []string{p.read("asked"), p.read("args"), p.read("environ")} {
		if strings.Contains(path, "EXECPROXY_") {
			t.Errorf("the plugin behind is told what was said to us: %s", path)
		}
	}
	if got := p.read("args"); got != "get-token --cluster=prod" || !strings.Contains(p.read("environ"), "ISSUER=test\n") {
		t.Errorf("the plugin behind got %q and %s", got, p.read("environ"))
	}
	if asked := p.read("asked"); asked != `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false}}` {
		t.Errorf("the plugin behind was asked %s", asked)
	}
	for _, e := range user.Env { // from now on without kubectl
		h.env[e.Name] = e.Value
	}
	// The lock of a client that would take a proxy changes nothing.
	h.env["KUBERNETES_EXEC_INFO"] = `{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","spec":{"interactive":false,"lockFilePath":"/does/not/exist"}}`
	a := h.answer(h.execproxy(user.Args...))
	if a.APIVersion != "client.authentication.k8s.io/v1beta1" || a.Status.Token != "direct-a" || a.Status.ProxyConfig != nil || a.Status.ClientKeyData != "" {
		t.Errorf("asked in v1beta1, with a lock: %+v", a)
	}
	h.env["KUBERNETES_EXEC_INFO"] = `{"apiVersion":"client.authentication.k8s.io/v1alpha1","kind":"ExecCredential","spec":{}}`
	if r := h.execproxy(user.Args...); r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, "v1alpha1") || !strings.Contains(r.stderr, "client.authentication.k8s.io/v1 ") {
		t.Errorf("asked in v1alpha1: %s", r)
	}
	// Another cluster than the one that it is for.
	h.env["KUBERNETES_EXEC_INFO"] = `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false,"cluster":{"server":"https://evil.example"}}}`
	if r := h.execproxy(append(user.Args, "--server", b.URL)...); r.code == 0 || r.stdout != "" || !strings.Contains(r.stderr, "https://evil.example") {
		t.Errorf("two clusters: %s", r)
	}
	if n := p.calls(); n != 1 {
		t.Errorf("the plugin behind ran %d times after all of that", n)
	}
}

// TestDirectRefused: what the API server refuses is not handed out again to the client that
// was refused, and a server that refuses everything is no reason for a storm.
func TestDirectRefused(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	p := h.issuer("refused-a", "refused-b")
	b.takes("jane", "refused-b")
	kc := h.directed("--kubeconfig", p.kubeconfig(b.URL))
	client := h.clientGo(kc)
	if user, err := whoAmI(t.Context(), client); err == nil {
		t.Errorf("the API server takes %q for %s", "refused-a", user)
	}
	if user, err := whoAmI(t.Context(), client); err != nil || user != "jane" {
		t.Errorf("the second request of the same client: %q, %v", user, err)
	}
	if n := p.calls(); n != 2 {
		t.Errorf("the plugin behind ran %d times, want once more after the 401", n)
	}

	// From now on nothing is taken.
	b.takes("nobody")
	p.put("tokens", "refused-c\n")
	h.execproxy("stop", "--all").ok(t)
	before := p.calls()
	client = h.clientGo(kc)
	for range 30 {
		if user, err := whoAmI(t.Context(), client); err == nil {
			t.Fatalf("the API server takes %q for %s", "refused-c", user)
		}
	}
	if n := p.calls() - before; n < 2 || n > 8 {
		t.Errorf("30 refused requests ran the plugin behind %d times", n)
	}
}

// clientGo is a client in this process, which runs the plugin of a kubeconfig in the home.
func (h *home) clientGo(kubeconfig string) *kubernetes.Clientset {
	h.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(h.t, err)
	for name, value := range h.env {
		config.ExecProvider.Env = append(config.ExecProvider.Env, api.ExecEnvVar{Name: name, Value: value})
	}
	// client-go keeps what a plugin answered for all configurations that look the same.
	config.ExecProvider.Env = append(config.ExecProvider.Env, api.ExecEnvVar{Name: "_", Value: h.dir + fmt.Sprint(time.Now().UnixNano())})
	config.QPS = -1
	c, err := kubernetes.NewForConfig(rest.AddUserAgent(config, h.t.Name()))
	must(h.t, err)
	return c
}

// TestDirectExpiry: a client runs the plugin again when a token is over, and gets the next.
func TestDirectExpiry(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	p := h.issuer("expiry-a", "expiry-b")
	p.put("life", "4")
	b.takes("jane", "expiry-a")
	b.takes("john", "expiry-b")
	client := h.clientGo(h.directed("--kubeconfig", p.kubeconfig(b.URL)))
	if user, err := whoAmI(t.Context(), client); err != nil || user != "jane" {
		t.Fatalf("%q, %v", user, err)
	}
	p.put("life", "600")
	eventually(t, patience, func() error {
		if user, err := whoAmI(t.Context(), client); err != nil || user != "john" {
			return fmt.Errorf("%q, %v", user, err)
		}
		return nil
	})
	if n := p.calls(); n != 2 {
		t.Errorf("the plugin behind ran %d times", n)
	}
	// What is over when it comes is not handed out.
	p.put("life", "-5")
	h.execproxy("stop", "--all").ok(t)
	r := h.execproxy("exec", "--direct", "--exec-command", p.command)
	if r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, "expired") || strings.Contains(r.stderr, "expiry-b") {
		t.Errorf("a token that is over: %s", r)
	}
}

// TestDirectFails: a plugin behind that fails is run once for a client that tries again
// and again, and nothing is left running.
func TestDirectFails(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	p := h.issuer("fails-a")
	p.put("fail", "log in with `issuer login`\n")
	kc := h.directed("--kubeconfig", p.kubeconfig(b.URL))
	r := h.kubectl(kc, "get", "namespaces")
	if r.code == 0 || !strings.Contains(r.stderr, "exec plugin issuer: it failed (exit status 3): log in with `issuer login`") {
		t.Errorf("kubectl: %s", r)
	}
	if n := p.calls(); n != 1 {
		t.Errorf("one kubectl ran the failing plugin %d times", n)
	}
	for name, tt := range map[string]struct{ answer, want string }{
		"control characters": {`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"canary\r\nX-Remote-User: root"}}`, "control character"},
		"another version":    {`{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","status":{"token":"canary"}}`, "asked for client.authentication.k8s.io/v1 and answered client.authentication.k8s.io/v1beta1"},
		"an old version":     {`{"apiVersion":"client.authentication.k8s.io/v1alpha1","kind":"ExecCredential","status":{"token":"canary"}}`, "answered client.authentication.k8s.io/v1alpha1"},
		"half a pair":        {`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"clientKeyData":"canary"}}`, "together"},
		"no credential":      {`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{}}`, "no credential"},
		"two documents":      {strings.Repeat(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"canary"}}`, 2), "more than one document"},
		"a log line before":  {"canary\n" + `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"canary"}}`, "not JSON"},
		"a proxy":            {`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"proxyConfig":{"url":"unix:///a","certificate-authority-data":"UEVN"}}}`, "proxy"},
	} {
		must(t, os.RemoveAll(p.dir+"/fail"))
		must(t, os.RemoveAll(h.path("state/execproxy/refused")))
		p.put("answer", tt.answer)
		r := h.execproxy("exec", "--direct", "--exec-command", p.command)
		if r.code != 1 || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, tt.want) || strings.Contains(r.stderr, "canary") {
			t.Errorf("%s: %s; want %q", name, r, tt.want)
		}
	}
	eventually(t, patience, func() error { // the last one has told why, and ends
		if left := processes(h.dir); len(left) > 0 {
			return fmt.Errorf("left running: %v", left)
		}
		return nil
	})
}

// TestDirectHangs: a plugin behind that never ends is killed with what it started, once for
// a client that tries again and again.
func TestDirectHangs(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	p := h.issuer("hangs-a")
	p.put("hang", "")
	r := h.kubectl(h.directed("--kubeconfig", p.kubeconfig(b.URL)), "get", "namespaces")
	if r.code == 0 || !strings.Contains(r.stderr, "did not end within 15s and was killed") || strings.Contains(r.stderr, "hangs-a") {
		t.Errorf("kubectl: %s", r)
	}
	if n := p.calls(); n != 1 {
		t.Errorf("one kubectl ran the hanging plugin %d times", n)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(p.read("hung")))
	must(t, err)
	eventually(t, patience, func() error {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.HasPrefix(string(text), "sleep") {
			return fmt.Errorf("its child %d lives: %q", pid, text)
		}
		return nil
	})
}

// TestDirectAsks: a plugin behind that asks its user does so on the client's terminal,
// once for all clients; and where there is none it says so.
func TestDirectAsks(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	p := h.issuer("asks-a")
	p.put("prompt", "")
	b.takes("jane", "asks-a")
	kc := h.directed("--kubeconfig", p.kubeconfig(b.URL))
	if r := h.kubectl(kc, "auth", "whoami"); r.code == 0 || !strings.Contains(r.stderr, "cannot ask for the password") {
		t.Errorf("without a terminal: %s", r)
	}
	tty, wait := h.onTerminal(suite.kubectl, "--kubeconfig="+kc, "auth", "whoami")
	tty.shown.await(t, "password: ")
	tty.types("pass-2718\n")
	tty.shown.await(t, "jane")
	if code := wait(); code != 0 {
		t.Fatalf("kubectl ended with %d: %s", code, tty.shown)
	}
	before := p.calls()
	if got := whoami(t, h, kc); got != "jane" { // no terminal
		t.Errorf("the next kubectl: %q", got)
	}
	if n := p.calls() - before; n != 0 {
		t.Errorf("the next kubectl ran the plugin behind %d times", n)
	}
	// The same behind a proxy.
	h.execproxy("stop", "--all").ok(t)
	kc = h.proxied("--kubeconfig", p.kubeconfig(b.URL))
	tty, wait = h.onTerminal(suite.kubectl, "--kubeconfig="+kc, "auth", "whoami")
	tty.shown.await(t, "password: ")
	tty.types("pass-2718\n")
	tty.shown.await(t, "jane")
	if code := wait(); code != 0 {
		t.Fatalf("kubectl through the proxy ended with %d: %s", code, tty.shown)
	}
	// A wrong password is asked for once, by a client that runs its plugin again and again.
	h.execproxy("stop", "--all").ok(t)
	must(t, os.RemoveAll(h.path("home/.kube/cache")))
	tty, wait = h.onTerminal(suite.kubectl, "--kubeconfig="+kc, "get", "namespaces")
	tty.shown.await(t, "password: ")
	tty.types("bad-2718\n")
	if code := wait(); code == 0 || strings.Count(tty.shown.String(), "password: ") != 1 || !strings.Contains(tty.shown.String(), "exec plugin issuer") {
		t.Errorf("a wrong password: %d\n%s", code, tty.shown)
	}
}

// TestDirectPair: a certificate and its key from files; a key that stays where it is.
func TestDirectPair(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	kc := h.directed("--kubeconfig", h.kubeconfig("plain", suite.cluster.API.URL, cert, key))
	if got := whoami(t, h, kc); got != "jane" {
		t.Errorf("auth whoami: %q", got)
	}
	a := h.answer(h.execproxy("exec", "--direct", "--key", key, "--cert", cert))
	if left := time.Until(a.Status.ExpirationTimestamp); a.Status.Token != "" || left < time.Minute || left > 10*time.Minute {
		t.Errorf("answer: %v, %v left", a.Status.Token, left)
	}
	if n := len(h.status()); n != 0 {
		t.Errorf("%d daemons for a pair in files", n)
	}
	for what, args := range map[string][]string{
		"cannot be handed out": {"--key", "tpm:handle=0x81000100", "--cert", cert},
		"leave --direct out":   {"--key", "pkcs11:token=a;object=b"},
		"signs each request":   {"--auth", "sigv4"},
	} {
		if r := h.execproxy(append([]string{"exec", "--direct"}, args...)...); r.code == 0 || r.stdout != "" || !strings.Contains(r.stderr, what) {
			t.Errorf("%v: %s", args, r)
		}
	}
}

// TestDirectAnotherUser: the daemon that keeps a credential is cut for every other user
// before its first byte, and shows its memory to nobody.
func TestDirectAnotherUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h, probe := newHomeFor(t, nobody), newHomeFor(t, nobody-1)
	p := h.issuer("another-a")
	if a := h.answer(h.execproxy("exec", "--direct", "--exec-command", p.command)); a.Status.Token != "another-a" {
		t.Errorf("answer: %+v", a)
	}
	keeper := h.proxy()
	control := h.runtime(keeper.ID + ".sock.ctl")
	for _, dir := range []string{h.dir, h.path("r"), h.runtime("")} {
		must(t, os.Chmod(dir, 0o755))
	}
	must(t, os.Chmod(control, 0o666))
	if out := probe.do(probe.role(roleConnect, control)).ok(t); out != "0 bytes\n" {
		t.Errorf("another user got %q", out)
	}
	if out := h.do(h.role(roleConnect, control)).ok(t); out == "0 bytes\n" {
		t.Error("the daemon's own user got nothing")
	}
	answer := map[string]string{}
	must(t, json.Unmarshal([]byte(h.do(h.role(roleProbe, fmt.Sprint(keeper.PID))).ok(t)), &answer))
	for what, got := range answer {
		if got != "denied" {
			t.Errorf("%s of the daemon is %s to its own user", what, got)
		}
	}
	must(t, os.Chmod(h.runtime(""), 0o700))
	must(t, os.Chmod(control, 0o600))
}

// TestDirectFile: a token in a file, which somebody else renews.
func TestDirectFile(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	b.takes("jane", "file-a")
	b.takes("john", "file-b")
	file := h.file("header", "Bearer file-a\n")
	kc := h.directed("--server", b.URL, "--certificate-authority", suite.cluster.Dir+"/ca.crt", "--auth", "headers", "--header", "Authorization=@"+file)
	if got := whoami(t, h, kc); got != "jane" {
		t.Errorf("auth whoami: %q", got)
	}
	h.file("header", "Bearer file-b\n")
	if got := whoami(t, h, kc); got != "john" {
		t.Errorf("auth whoami with the next token: %q", got)
	}
	h.file("header", "Basic canary\n")
	if r := h.kubectl(kc, "auth", "whoami"); r.code == 0 || !strings.Contains(r.stderr, "Bearer TOKEN") || strings.Contains(r.stderr, "canary") {
		t.Errorf("no token: %s", r)
	}
}
