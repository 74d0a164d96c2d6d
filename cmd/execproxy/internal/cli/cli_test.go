package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

var update = flag.Bool("update", false, "write goldens and generated documents instead of comparing")

// play runs the program in a world of its own.
func play(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	full := map[string]string{"HOME": dir, "XDG_RUNTIME_DIR": dir}
	for k, v := range env {
		full[k] = v
	}
	var out, errs bytes.Buffer
	w := &world{
		args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &errs, dir: dir, version: "v0.0.0-test",
		lookup: func(k string) (string, bool) { v, ok := full[k]; return v, ok },
	}
	for k, v := range full {
		w.environ = append(w.environ, k+"="+v)
	}
	code = run(t.Context(), w)
	return code, out.String(), errs.String()
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; make it with go test ./cmd/execproxy/internal/cli -update", err)
	}
	if got != string(want) {
		t.Errorf("%s has drifted from the command table; go test ./cmd/execproxy/internal/cli -update\n--- got\n%s", path, got)
	}
}

func TestHelp(t *testing.T) {
	code, out, errs := play(t, nil, "--help")
	if code != 0 || errs != "" {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	golden(t, "testdata/execproxy.txt", out)
	for _, c := range append(commands(), flat(commands())...) {
		if c.hidden {
			if strings.Contains(out, "  "+c.name+" ") {
				t.Errorf("the hidden command %s is shown", c.name)
			}
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			words := strings.Fields(c.name)
			code, out, errs := play(t, nil, append(words, "--help")...)
			if code != 0 || errs != "" {
				t.Errorf("exit %d, stderr %q", code, errs)
			}
			golden(t, "testdata/"+strings.Join(words, "-")+".txt", out)
			if _, same, _ := play(t, nil, append([]string{"help"}, words...)...); same != out {
				t.Error("help and --help differ")
			}
		})
	}
}

// The manual page comes from the command table.
func TestManPage(t *testing.T) {
	golden(t, filepath.Join("..", "..", "..", "..", "docs", "execproxy.1"), manPage())
}

func TestWrongUsage(t *testing.T) {
	info := map[string]string{"KUBERNETES_EXEC_INFO": `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false}}`}
	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		code int
		want []string
	}{
		{"nothing", nil, nil, 2, []string{"Usage: execproxy COMMAND"}},
		{"unknown command", nil, []string{"sreve"}, 2, []string{"sreve", "execproxy help"}},
		{"unknown flag", nil, []string{"serve", "--sever", "x"}, 2, []string{"--sever", "execproxy help serve"}},
		{"stray operand", nil, []string{"serve", "x"}, 2, []string{"serve", `"x"`}},
		{"run without a command", nil, []string{"run"}, 2, []string{"execproxy run -- kubectl"}},
		{"stop without a name", nil, []string{"stop"}, 2, []string{"--all"}},
		{"stop what does not run", nil, []string{"stop", "cafe"}, 1, []string{"cafe", "execproxy status"}},
		{"unknown output", nil, []string{"status", "-o", "xml"}, 2, []string{"json"}},
		{"bad flag value", nil, []string{"serve", "--drain-timeout", "soon"}, 2, []string{"--drain-timeout", "duration"}},
		{"bad value of a flag", nil, []string{"serve", "--server", "https://a", "--auth", "mtsl"}, 2, []string{"--auth", "mtsl"}},
		{"kubeconfig-out in no directory", nil, []string{"serve", "--server", "https://a", "--auth", "headers", "--header", "A=b", "--kubeconfig-out", "/does/not/exist/k"}, 1, []string{"kubeconfig-out", "/does/not/exist"}},
		{"kubeconfig-out is a directory", nil, []string{"serve", "--server", "https://a", "--auth", "headers", "--header", "A=b", "--kubeconfig-out", "/"}, 1, []string{"kubeconfig-out", "directory"}},
		{"exec by hand", nil, []string{"exec"}, 1, []string{"KUBERNETES_EXEC_INFO", "execproxy kubeconfig", "execproxy demo"}},
		{"plugin without cluster", info, nil, 1, []string{"provideClusterInfo"}},
		{"plugin's flags without the command", info, []string{"--auth", "magic", "--listen", "https://127.0.0.1:1", "--server", "https://a"}, 2, []string{"auth", "magic"}},
		{"broken info", map[string]string{"KUBERNETES_EXEC_INFO": "{"}, nil, 1, []string{"KUBERNETES_EXEC_INFO"}},
		{"foreign server", map[string]string{"KUBERNETES_EXEC_INFO": `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"cluster":{"server":"https://prod:6443"}}}`}, []string{"exec"}, 1, []string{"https://prod:6443", "execproxy kubeconfig", "execproxy run"}},
		{"foreground without lock", info, []string{"exec", "--foreground", "--listen", "https://127.0.0.1:1", "--server", "https://a", "--auth", "headers", "--header", "A=b"}, 1, []string{"--foreground", "lock file"}},
		{"a switch and its value", nil, []string{"kubeconfig", "--provide-cluster-info", "false"}, 2, []string{`got "false"`, "--FLAG=false"}},
		{"missing kubeconfig", nil, []string{"kubeconfig", "--kubeconfig", "/does/not/exist"}, 1, []string{"/does/not/exist", "name another"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := play(t, tt.env, tt.args...)
			if code != tt.code {
				t.Errorf("exit %d, want %d", code, tt.code)
			}
			if out != "" {
				t.Errorf("stdout %q", out)
			}
			if tt.name != "nothing" && strings.Count(errs, "\n") != 1 {
				t.Errorf("stderr is not one line: %q", errs)
			}
			for _, w := range tt.want {
				if !strings.Contains(errs, w) {
					t.Errorf("%q does not say %q", errs, w)
				}
			}
		})
	}
}

func TestVersion(t *testing.T) {
	if code, out, _ := play(t, nil, "version"); code != 0 || !strings.HasPrefix(out, "execproxy v0.0.0-test go1.") {
		t.Errorf("exit %d, %q", code, out)
	}
	if code, out, _ := play(t, nil, "version", "-o", "json"); code != 0 || !strings.Contains(out, `"version": "v0.0.0-test"`) {
		t.Errorf("exit %d, %q", code, out)
	}
}

func TestStatusOfNothing(t *testing.T) {
	if code, out, errs := play(t, nil, "status"); code != 0 || out != "" || errs != "No proxies are running.\n" {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
	if code, out, _ := play(t, nil, "status", "-o", "json"); code != 0 || strings.Join(strings.Fields(out), "") != `{"proxies":[]}` {
		t.Errorf("exit %d, %q", code, out)
	}
}

const kubeconfigText = `apiVersion: v1
kind: Config
current-context: files
clusters:
- name: prod
  cluster: {server: "https://prod.example:6443", certificate-authority-data: cGVt, tls-server-name: api}
contexts:
- {name: files, context: {cluster: prod, user: files, namespace: team}}
- {name: inline, context: {cluster: prod, user: inline}}
- {name: token, context: {cluster: prod, user: token}}
- {name: exec, context: {cluster: prod, user: exec}}
- {name: lost, context: {cluster: nowhere, user: files}}
users:
- {name: files, user: {client-certificate: c.pem, client-key: k.pem}}
- {name: inline, user: {client-certificate-data: Y2VydA==, client-key-data: c2VjcmV0LWtleQ==}}
- {name: token, user: {token: secret-token}}
- {name: exec, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: other, interactiveMode: Never}}}
`

func TestKubeconfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	if err := os.WriteFile(file, []byte(kubeconfigText), 0o600); err != nil {
		t.Fatal(err)
	}
	args := func(a ...string) []string {
		return append([]string{"kubeconfig", "--kubeconfig", file, "--listen", "https://127.0.0.1:21000", "--command", "execproxy"}, a...)
	}
	code, out, errs := play(t, nil, args()...)
	if code != 0 || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "warning") || !strings.Contains(errs, "k.pem") {
		t.Fatalf("exit %d, stderr %q, want a warning about the key that is not there", code, errs)
	}
	for _, want := range []string{
		"server: https://127.0.0.1:21000", "server: https://prod.example:6443", "name: client.authentication.k8s.io/exec",
		"key: " + filepath.Join(dir, "k.pem"), "cert: " + filepath.Join(dir, "c.pem"), "auth: mtls", "tls-server-name: api",
		"provideClusterInfo: true", "interactiveMode: IfAvailable", "namespace: team", "- exec", "current-context: files",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, tt := range []struct {
		context string
		more    []string
		want    []string
	}{
		{"inline", nil, []string{"inline", "--key FILE"}},
		{"token", nil, []string{"header", "@FILE"}},
		{"lost", nil, []string{"nowhere"}},
		{"absent", nil, []string{"absent", "get-contexts"}},
		{"files", []string{"--listen", "https://127.0.0.1:0"}, []string{"port"}},
		{"files", []string{"--listen", "unix:///a"}, []string{"Unix socket"}},
	} {
		a := append(args(), "--context", tt.context)
		if tt.more != nil {
			a = append([]string{"kubeconfig", "--kubeconfig", file, "--context", tt.context}, tt.more...)
		}
		code, out, errs := play(t, nil, a...)
		if code != 1 || out != "" {
			t.Errorf("%s %v: exit %d, stdout %q", tt.context, tt.more, code, out)
		}
		for _, w := range tt.want {
			if !strings.Contains(errs, w) {
				t.Errorf("%s: %q does not say %q", tt.context, errs, w)
			}
		}
		if strings.Contains(errs+out, "secret") {
			t.Errorf("%s: a secret is printed: %q", tt.context, errs)
		}
	}
	// A stronger identity takes the place of the context's user.
	code, out, errs = play(t, nil, args("--context", "token", "--auth", "sigv4", "--aws-region", "eu-central-1")...)
	if code != 0 || !strings.Contains(out, "awsRegion: eu-central-1") || strings.Contains(out, "secret") {
		t.Errorf("exit %d, %q\n%s", code, errs, out)
	}
	// What we printed can be read again, by ourselves.
	again := filepath.Join(dir, "again")
	if err := os.WriteFile(again, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	code, twice, errs := play(t, nil, "kubeconfig", "--kubeconfig", again, "--listen", "https://127.0.0.1:21000", "--command", "execproxy")
	if code != 0 {
		t.Fatalf("exit %d, %q", code, errs)
	}
	strip := func(s string) string { // each world has its own authority
		_, s, _ = strings.Cut(s, "extensions:")
		return s
	}
	if strip(twice) != strip(out) {
		t.Errorf("read again:\n%s\nwas\n%s", twice, out)
	}
}

func TestNoKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist") // read by client-go itself
	code, out, errs := play(t, nil, "kubeconfig")
	if code != 1 || out != "" || !strings.Contains(errs, "/does/not/exist") || !strings.Contains(errs, "--kubeconfig") {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
}

// Without --listen the port stays the same, for the same cluster and identity.
func TestKubeconfigPort(t *testing.T) {
	home := t.TempDir()
	port := func(args ...string) string {
		_, out, errs := play(t, map[string]string{"HOME": home, "XDG_RUNTIME_DIR": home}, append([]string{"kubeconfig", "--command", "execproxy", "--auth", "sigv4"}, args...)...)
		for _, line := range strings.Split(out, "\n") {
			if s, ok := strings.CutPrefix(strings.TrimSpace(line), "server: https://127.0.0.1:2"); ok {
				return s
			}
		}
		t.Fatalf("no port: %q %q", out, errs)
		return ""
	}
	if p := port("--server", "https://hook/authenticate"); !strings.HasSuffix(p, "/authenticate") {
		t.Errorf("the server's path is not in the client's: %s", p)
	}
	a := port("--server", "https://a")
	if b := port("--server", "https://a"); a != b {
		t.Errorf("ports %s and %s for one cluster", a, b)
	}
	if b := port("--server", "https://b"); a == b {
		t.Errorf("port %s for two clusters", a)
	}
}

func TestEveryFieldHasAFlagSomewhere(t *testing.T) {
	for _, f := range config.Fields {
		found := false
		for _, c := range commands() {
			found = found || !c.hidden && c.flagSet(&options{}).Lookup(f.Flag) != nil
		}
		if !found {
			t.Errorf("no command takes --%s", f.Flag)
		}
	}
}

// What the user of a kubeconfig tells the plugin beside the extension decides who
// it is; whoever cannot follow it must not go on as somebody else.
func TestExecUserOfOurs(t *testing.T) {
	const head = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],
clusters: [{name: k, cluster: {server: "https://127.0.0.1:20001", extensions: [{name: client.authentication.k8s.io/exec, extension: {upstream: {server: "https://prod"}, auth: sigv4, awsRegion: r}}]}}],
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: execproxy, interactiveMode: Never, `
	for _, tt := range []struct{ exec, want string }{
		{"args: [exec]", ""},
		{"args: [exec, --log-level, debug]", ""},
		{"args: [exec, --aws-profile=admin]", "--aws-profile"},
		{"env: [{name: AWS_PROFILE, value: admin}]", "AWS_PROFILE"},
	} {
		file := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(file, []byte(head+tt.exec+"}}}]}"), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errs := play(t, nil, "kubeconfig", "--kubeconfig", file, "--listen", "https://127.0.0.1:21000")
		if tt.want == "" && code != 0 || tt.want != "" && (code != 1 || !strings.Contains(errs, tt.want) || strings.Contains(errs, "admin")) {
			t.Errorf("%s: exit %d, %q", tt.exec, code, errs)
		}
	}
}
