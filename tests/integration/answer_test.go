//go:build linux

package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAnswer: the version that came in goes out, and the same caller gets the
// same bytes again: client-go closes its connections when they change.
func TestAnswer(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	first := h.open(p)
	p.version = "v1beta1"
	beta := h.open(p)
	for version, d := range map[string]*document{"v1": first, "v1beta1": beta} {
		if d.APIVersion != "client.authentication.k8s.io/"+version || d.Kind != "ExecCredential" {
			t.Errorf("asked in %s, answered %s %s", version, d.APIVersion, d.Kind)
		}
		if !strings.HasSuffix(d.text, "}\n") || d.Status.Token != nil {
			t.Errorf("answer: %q", d.text)
		}
	}
	beta.Status.ExpirationTimestamp = first.Status.ExpirationTimestamp
	if beta.Status.ClientCertificateData != first.Status.ClientCertificateData || beta.Status.ClientKeyData != first.Status.ClientKeyData ||
		beta.Status.ProxyConfig.URL != first.Status.ProxyConfig.URL || string(beta.Status.ProxyConfig.CA) != string(first.Status.ProxyConfig.CA) {
		t.Error("the same caller got another pair, socket or CA")
	}
	socket := first.socket(t)
	for path, want := range map[string]os.FileMode{socket: 0o600, socket + ".ctl": 0o600, filepath.Dir(socket): 0o700} {
		info, err := os.Stat(path)
		must(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
	if dir := filepath.Dir(socket) + "/"; dir != h.runtime("")+"/" && dir != h.runtime("") {
		t.Errorf("the socket is in %s, want %s", dir, h.runtime(""))
	}
}

// TestNoRuntimeDirectory: without XDG_RUNTIME_DIR sockets go below the state
// directory, never into a shared /tmp.
func TestNoRuntimeDirectory(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	delete(h.env, "XDG_RUNTIME_DIR")
	p := h.jane(u)
	d := h.open(p)
	if socket := d.socket(t); !strings.HasPrefix(socket, h.path("state/execproxy/run")+"/") {
		t.Errorf("the socket is %s", socket)
	}
	get(t, d.client(t, u.url), u.url+"/version")
	p.lock.release()
	h.gone(d.socket(t), 2*time.Second)
}

// TestBare: execproxy without a command is the plugin, when a client runs it.
func TestBare(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	cmd := h.command(h.bin)
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info())
	d := decode(t, h.do(cmd).ok(t))
	get(t, d.client(t, u.url), u.url+"/version")
}

// TestByFlags: clients that set no KUBERNETES_EXEC_INFO say all by flags.
func TestByFlags(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	l := h.lock()
	d := decode(t, h.execproxy(append([]string{"exec", "--lock-file", l.path()}, upstreamFlags(u.url, cert, key)...)...).ok(t))
	get(t, d.client(t, u.url), u.url+"/version")
	if s := u.last(t, "/version"); s.user != "jane" {
		t.Errorf("the upstream saw %q", s.user)
	}
}

// TestPrecedence: flags, environment, file, extension.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	who := func(p plugin) string {
		t.Helper()
		p.lock = h.lock()
		defer p.lock.release()
		get(t, h.open(p).client(t, u.url), u.url+"/who")
		return u.last(t, "/who").user
	}
	p := plugin{server: u.url, ca: suite.cluster.CA.PEM}
	pair := func(name string) (cert, key string) { return h.user(name) }
	cert, key := pair("extension")
	p.config = mtls(cert, key)
	if got := who(p); got != "extension" {
		t.Errorf("the extension alone: %s", got)
	}
	cert, key = pair("file")
	p.args = []string{"--config", h.file("config.yaml",
		"apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\nauth: mtls\ncert: "+cert+"\nkey: "+key+"\n")}
	if got := who(p); got != "file" {
		t.Errorf("a file above the extension: %s", got)
	}
	cert, key = pair("environment")
	h.env["EXECPROXY_CERT"], h.env["EXECPROXY_KEY"] = cert, key
	if got := who(p); got != "environment" {
		t.Errorf("the environment above the file: %s", got)
	}
	cert, key = pair("flags")
	p.args = append(p.args, "--cert", cert, "--key", key)
	if got := who(p); got != "flags" {
		t.Errorf("flags above all: %s", got)
	}
}

// TestForeignAuthorization: a request with somebody else's token is refused;
// where it is let through, it bears neither our certificate nor our signature.
func TestForeignAuthorization(t *testing.T) {
	ways(t, func(t *testing.T, h *home, config object) {
		u := newUpstream(t)
		send := func() int {
			t.Helper()
			d := h.open(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: h.lock()})
			client := d.client(t, u.url)
			get(t, client, u.url+"/own")
			authenticated(t, config, u.last(t, "/own"))
			req, err := http.NewRequest(http.MethodGet, u.url+"/foreign", nil)
			must(t, err)
			req.Header.Set("Authorization", "Bearer somebody-else")
			resp, err := client.Do(req)
			must(t, err)
			_ = resp.Body.Close()
			return resp.StatusCode
		}
		before := u.count()
		if code := send(); code != http.StatusUnauthorized || u.count() != before+1 {
			t.Errorf("by default a foreign token is answered %d; %d requests reached the upstream", code, u.count()-before)
		}
		config["foreignAuthorization"] = "passthrough"
		if code := send(); code != http.StatusOK {
			t.Fatalf("passed through: %d", code)
		}
		if s := u.last(t, "/foreign"); s.user != "" || s.header.Get("Authorization") != "Bearer somebody-else" || s.header.Get("X-Amz-Date") != "" {
			t.Errorf("the foreign request bears our identity: user %q, %v", s.user, s.header)
		}
	})
}
