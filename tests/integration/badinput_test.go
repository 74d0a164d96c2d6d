//go:build linux

package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// nobody is the second user of the tests.
const nobody = 65534

// needRoot is for tests that run programs as another user. In CI they never
// pass by being left out.
func needRoot(t *testing.T) {
	t.Helper()
	const why = "this test runs programs as another user: run the tests as root (sudo, or in a container)"
	switch {
	case os.Getuid() == 0:
	case os.Getenv("CI") != "":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

// commonUser is one who is not root: nobody, or whoever runs the tests.
func commonUser() int {
	if os.Getuid() == 0 {
		return nobody
	}
	return -1
}

// refused checks how a failure is told: nothing on stdout, one line on stderr
// that contains all of the words, and the exit code.
func refused(t *testing.T, r result, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("want exit code %d: %s", code, r)
	}
	if r.stdout != "" {
		t.Errorf("stdout belongs to the credential: %s", r)
	}
	if !strings.HasPrefix(r.stderr, "execproxy: ") || strings.Count(r.stderr, "\n") != 1 || !strings.HasSuffix(r.stderr, "\n") {
		t.Errorf("want one line on stderr that begins with execproxy: %s", r)
	}
	for _, w := range words {
		if !strings.Contains(strings.ToLower(r.stderr), strings.ToLower(w)) {
			t.Errorf("the message does not say %q: %s", w, r.stderr)
		}
	}
	if strings.Contains(r.stderr, "-----BEGIN") || strings.Contains(r.stderr, "hunter2") {
		t.Errorf("the message shows a key: %s", r.stderr)
	}
	if !t.Failed() {
		t.Logf("%s", strings.TrimSpace(r.stderr))
	}
}

// badInput is a case: prepare spoils something, and says which words the
// message must contain: the thing, and its cure.
type badInput struct {
	name    string
	prepare func(h *home, p *plugin) []string
}

// set puts a field into the exec extension.
func set(name string, value any) func(*home, *plugin) []string {
	return func(_ *home, p *plugin) []string {
		p.config[name] = value
		return []string{name}
	}
}

// raw is a whole KUBERNETES_EXEC_INFO.
func raw(text string, words ...string) func(*home, *plugin) []string {
	return func(_ *home, p *plugin) []string {
		p.raw = text
		return append(words, "KUBERNETES_EXEC_INFO")
	}
}

func badInputs() []badInput {
	const v1, v1beta1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
	return []badInput{
		{"info is no JSON", raw("{not json")},
		{"info is a list", raw("[]")},
		{"info is cut", raw(`{"apiVersion":"` + v1 + `","kind":"ExecCred`)},
		{"unknown apiVersion", raw(`{"apiVersion":"client.authentication.k8s.io/v1alpha1","kind":"ExecCredential","spec":{}}`, v1, v1beta1)},
		{"unknown kind", raw(`{"apiVersion":"`+v1+`","kind":"Pod","spec":{}}`, "kind", "ExecCredential")},

		{"unknown field in the extension", set("awsRegoin", "eu-central-1")},
		{"unknown field below", func(_ *home, p *plugin) []string {
			p.config["upstream"] = object{"server": p.server, "proxyUrl": "http://127.0.0.1:1"}
			return []string{"proxyUrl"}
		}},
		{"unknown auth", func(_ *home, p *plugin) []string {
			p.config["auth"] = "kerberos"
			return []string{"kerberos", "mtls", "sigv4"}
		}},
		{"field of a wrong type", func(_ *home, p *plugin) []string { p.config["headers"] = 7; return []string{"headers", "list"} }},
		{"duration", func(_ *home, p *plugin) []string {
			p.config["idleTimeout"] = "soon"
			return []string{"idleTimeout", "soon"}
		}},
		{"unknown field in the file", func(h *home, p *plugin) []string {
			file := h.file("c.yaml", "apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\nawsRegoin: x\n")
			p.args = []string{"--config", file}
			return []string{"awsRegoin", file}
		}},
		{"unknown version of the file", func(h *home, p *plugin) []string {
			file := h.file("c.yaml", "apiVersion: execproxy.io/v9\nkind: ProxyConfiguration\n")
			p.args = []string{"--config", file}
			return []string{"execproxy.io/v1alpha1", file}
		}},
		{"no file", func(h *home, p *plugin) []string {
			p.args = []string{"--config", h.path("none.yaml")}
			return []string{h.path("none.yaml")}
		}},

		{"missing key", func(h *home, p *plugin) []string {
			p.config["key"] = h.path("none.key")
			return []string{h.path("none.key")}
		}},
		{"missing certificate", func(h *home, p *plugin) []string {
			p.config["cert"] = h.path("none.crt")
			return []string{h.path("none.crt")}
		}},
		{"certificate of another key", func(h *home, p *plugin) []string {
			cert, _ := h.user("other")
			p.config["cert"] = cert
			return []string{cert, "does not belong to the key"}
		}},
		{"expired certificate", func(h *home, p *plugin) []string {
			pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "late", Age: 24 * time.Hour, Lifetime: time.Hour})
			must(h.t, err)
			cert, key, err := pair.Write(h.dir, "late")
			must(h.t, err)
			p.config["cert"], p.config["key"] = cert, key
			return []string{cert, "expired"}
		}},
		{"key is a directory", func(h *home, p *plugin) []string { p.config["key"] = h.path("tmp"); return []string{h.path("tmp")} }},
		{"key is no PEM", func(h *home, p *plugin) []string {
			p.config["key"] = h.file("key.txt", "hunter2")
			return []string{h.path("key.txt"), "PEM"}
		}},
		{"encrypted key", func(h *home, p *plugin) []string {
			p.config["key"] = h.file("locked.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
			return []string{h.path("locked.key"), "encrypted"}
		}},

		{"free lock", func(h *home, p *plugin) []string { p.lock.unlock(); return []string{p.lock.path(), "lock"} }},
		{"no lock file", func(h *home, p *plugin) []string { must(h.t, os.Remove(p.lock.path())); return []string{p.lock.path()} }},
		{"fcntl lock", func(h *home, p *plugin) []string {
			p.lock.unlock()
			must(h.t, unix.FcntlFlock(p.lock.f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
			return []string{p.lock.path(), "flock"}
		}},
		{"lock is a symlink", func(h *home, p *plugin) []string {
			must(h.t, os.Rename(p.lock.path(), h.path("real")))
			must(h.t, os.Symlink(h.path("real"), p.lock.path()))
			return []string{p.lock.path(), "symbolic link"}
		}},
		{"lock is a FIFO", func(h *home, p *plugin) []string {
			must(h.t, os.Remove(p.lock.path()))
			must(h.t, unix.Mkfifo(p.lock.path(), 0o600))
			return []string{p.lock.path(), "regular"}
		}},
		{"lock is a directory", func(h *home, p *plugin) []string {
			must(h.t, os.Remove(p.lock.path()))
			must(h.t, os.Mkdir(p.lock.path(), 0o700))
			return []string{p.lock.path(), "directory"}
		}},
		{"lock that others may write", func(h *home, p *plugin) []string {
			must(h.t, os.Chmod(p.lock.path(), 0o666))
			return []string{p.lock.path(), "0600"}
		}},
		{"lock of another user", func(h *home, p *plugin) []string {
			needRoot(h.t)
			must(h.t, os.Chown(p.lock.path(), nobody, nobody))
			return []string{p.lock.path(), "same user"}
		}},

		{"socket path too long", func(h *home, p *plugin) []string {
			long := filepath.Join(h.path("r"), strings.Repeat("long", 25))
			must(h.t, os.Mkdir(long, 0o700))
			h.env["XDG_RUNTIME_DIR"] = long
			return []string{long, "107", "XDG_RUNTIME_DIR"}
		}},
		{"socket directory open to all", func(h *home, p *plugin) []string {
			must(h.t, os.Mkdir(h.runtime(""), 0o700))
			must(h.t, os.Chmod(h.runtime(""), 0o777))
			return []string{filepath.Clean(h.runtime("")), "chmod"}
		}},
		{"socket directory of another user", func(h *home, p *plugin) []string {
			needRoot(h.t)
			must(h.t, os.Mkdir(h.runtime(""), 0o700))
			must(h.t, os.Chown(h.runtime(""), nobody, nobody))
			return []string{filepath.Clean(h.runtime("")), "of your own"}
		}},
		{"socket directory is a symlink", func(h *home, p *plugin) []string {
			must(h.t, os.Symlink(h.path("state"), filepath.Clean(h.runtime(""))))
			return []string{filepath.Clean(h.runtime("")), "symbolic link"}
		}},

		{"unreachable upstream", func(h *home, p *plugin) []string {
			address := fmt.Sprintf("127.0.0.1:%d", freePort(h.t))
			p.server = "https://" + address
			return []string{address, "refused"}
		}},
		{"upstream with no such name", func(_ *home, p *plugin) []string {
			p.server = "https://no-such-host.invalid:6443"
			return []string{"no-such-host.invalid"}
		}},
		{"untrusted upstream", func(h *home, p *plugin) []string {
			p.ca = suite.cluster.FrontProxy.PEM
			return []string{strings.TrimPrefix(p.server, "https://"), "certificate-authority"}
		}},
		{"upstream of another name", func(_ *home, p *plugin) []string {
			p.config["upstream"] = object{"server": p.server, "certificate-authority-data": suite.cluster.CA.PEM, "tls-server-name": "another.example.com"}
			return []string{"another.example.com", "tls-server-name"}
		}},
		{"CA is no certificate", func(_ *home, p *plugin) []string {
			p.ca = []byte("nonsense")
			return []string{"certificate-authority-data"}
		}},
		{"plain http", func(_ *home, p *plugin) []string {
			p.server = strings.Replace(p.server, "https:", "http:", 1)
			return []string{p.server, "https"}
		}},
		{"no server", func(_ *home, p *plugin) []string { p.server = ""; return []string{"--server", "execproxy kubeconfig"} }},
		{"neither lock nor loopback", func(_ *home, p *plugin) []string {
			p.lock, p.server = nil, "https://kubernetes.example.com:6443"
			return []string{"execproxy kubeconfig", "execproxy run"}
		}},
		{"port taken", func(h *home, p *plugin) []string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(h.t, err)
			h.t.Cleanup(func() { _ = l.Close() })
			p.lock = nil
			p.config["upstream"] = object{"server": p.server, "certificate-authority-data": suite.cluster.CA.PEM}
			p.server, p.ca = "https://"+l.Addr().String(), nil
			return []string{l.Addr().String(), "taken", "another port"}
		}},
		{"another user's kubeconfig, whose proxy runs", func(h *home, p *plugin) []string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(h.t, err)
			h.t.Cleanup(func() { _ = l.Close() })
			p.lock = nil
			p.config["upstream"] = object{"server": p.server, "certificate-authority-data": suite.cluster.CA.PEM}
			p.server = "https://" + l.Addr().String() // and the authority is not ours
			return []string{"not this user's loopback CA", "execproxy kubeconfig"}
		}},

		{"sigv4 without a region", func(h *home, p *plugin) []string {
			h.sharedCredentials()
			p.config = object{"auth": "sigv4"}
			return []string{"--aws-region", "AWS_REGION"}
		}},
		{"sigv4 without credentials", func(_ *home, p *plugin) []string {
			p.config = sigv4Config()
			return []string{"AWS", "credentials"}
		}},
		{"header file missing", func(h *home, p *plugin) []string {
			p.config = object{"auth": "headers", "headers": []string{"X-Api-Key=@" + h.path("none")}}
			return []string{h.path("none")}
		}},
		{"header without a value", func(_ *home, p *plugin) []string {
			p.config = object{"auth": "headers", "headers": []string{"X-Api-Key"}}
			return []string{"header", "Name=value"}
		}},
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	for _, c := range badInputs() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			cert, key := h.user("jane", "dev")
			p := &plugin{server: suite.cluster.API.URL, ca: suite.cluster.CA.PEM, config: mtls(cert, key), lock: h.lock()}
			words := c.prepare(h, p)
			r := h.exec(*p)
			refused(t, r, 1, words...)
			if r.took > 15*time.Second {
				t.Errorf("it took %v to say so", r.took)
			}
			eventually(t, 2*time.Second, func() error {
				if left := processes(h.dir); len(left) > 0 {
					return fmt.Errorf("a proxy runs after all: %v", left)
				}
				return nil
			})
		})
	}
}

func TestByHand(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	refused(t, h.execproxy("exec"), 1, "KUBERNETES_EXEC_INFO", "execproxy kubeconfig")
	for _, args := range [][]string{{"exec", "--no-such-flag"}, {"no-such-command"}, {"run"}, {"stop"}} {
		r := h.execproxy(args...)
		if r.code != 2 || r.stdout != "" || !strings.Contains(r.stderr, args[len(args)-1]) {
			t.Errorf("wrong usage: want exit code 2, the culprit on stderr and nothing on stdout: %s", r)
		}
	}
}

// TestBadServe: a proxy in the foreground tells its failures the same way.
func TestBadServe(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = taken.Close() }()
	for _, c := range []struct {
		flags []string
		words []string
	}{
		{[]string{"--listen", "https://" + taken.Addr().String()}, []string{taken.Addr().String(), "taken"}},
		{[]string{"--listen", "https://0.0.0.0:8443"}, []string{"0.0.0.0", "loopback"}},
		{[]string{"--listen", "http://127.0.0.1:8080"}, []string{"listen", "https"}},
		{[]string{"--listen", "unix://relative.sock"}, []string{"relative.sock"}},
		{[]string{"--listen", "unix://" + h.path(strings.Repeat("long", 30))}, []string{"107"}},
		{[]string{"--kubeconfig-out", h.path("no/such/dir/out")}, []string{h.path("no/such/dir")}},
		{[]string{"--key", h.path("none")}, []string{h.path("none")}},
		{[]string{"--auth", "sigv4", "--key", key}, []string{"key"}},
	} {
		r := h.execproxy(append(append([]string{"serve"}, upstreamFlags(suite.cluster.API.URL, cert, key)...), c.flags...)...)
		if r.code == 0 || r.stdout != "" {
			t.Errorf("%q: %s", c.flags, r)
		}
		for _, w := range c.words {
			if !strings.Contains(r.stderr, w) {
				t.Errorf("%q: the message does not say %q: %s", c.flags, w, r.stderr)
			}
		}
	}
}

// TestUnreadableKey: as a user who may not read it.
func TestUnreadableKey(t *testing.T) {
	t.Parallel()
	h := newHomeFor(t, commonUser())
	cert, key := h.user("jane", "dev")
	must(t, os.Chmod(key, 0))
	refused(t, h.exec(plugin{server: suite.cluster.API.URL, ca: suite.cluster.CA.PEM, config: mtls(cert, key), lock: h.lock()}), 1, key, "chmod")
}

// TestWorldReadableKey: it works, and the user is told where users look; not
// on the plugin's stderr, which must stay empty on success.
func TestWorldReadableKey(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	must(t, os.Chmod(key, 0o644))
	h.open(plugin{server: suite.cluster.API.URL, ca: suite.cluster.CA.PEM, config: mtls(cert, key), lock: h.lock()})
	logs, err := filepath.Glob(h.path("state/execproxy/log/*.log"))
	must(t, err)
	var logged strings.Builder
	for _, log := range logs {
		data, err := os.ReadFile(log)
		must(t, err)
		logged.Write(data)
	}
	if !strings.Contains(logged.String(), key) || !strings.Contains(logged.String(), "chmod") {
		t.Errorf("no warning about %s in the log: %s", key, &logged)
	}
	s := h.serve(upstreamFlags(suite.cluster.API.URL, cert, key)...)
	s.stderr.await(t, key)
}
