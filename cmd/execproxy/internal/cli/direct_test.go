package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

const pluginKubeconfig = `apiVersion: v1
kind: Config
current-context: aws
clusters:
- name: prod
  cluster: {server: "https://prod.example:6443", certificate-authority-data: cGVt, tls-server-name: api}
- name: foreign
  cluster:
    server: https://prod.example:6443
    extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: x}}]
contexts:
- {name: aws, context: {cluster: prod, user: aws, namespace: team}}
- {name: told, context: {cluster: foreign, user: told}}
- {name: old, context: {cluster: prod, user: old}}
- {name: secret, context: {cluster: prod, user: secret}}
users:
- name: aws
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: ./bin/aws
      args: [--region, eu-central-1, eks, get-token, --cluster-name, prod]
      env: [{name: AWS_PROFILE, value: ops}]
      interactiveMode: Never
      provideClusterInfo: false
- {name: told, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: issuer, interactiveMode: IfAvailable, provideClusterInfo: true}}}
- {name: old, user: {exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: issuer, interactiveMode: IfAvailable}}}
- {name: secret, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: issuer, env: [{name: CLIENT_SECRET, value: canary}, {name: TOKEN_FILE, value: /a}], interactiveMode: IfAvailable}}}
`

// A user's plugin is what stands behind the proxy, and behind exec --direct.
func TestKubeconfigOfPlugin(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	if err := os.WriteFile(file, []byte(pluginKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	print := func(args ...string) (int, string, string) {
		return play(t, nil, append([]string{"kubeconfig", "--kubeconfig", file, "--command", "execproxy"}, args...)...)
	}
	code, out, errs := print("--listen", "https://127.0.0.1:21000")
	if code != 0 || !strings.Contains(errs, "exec-command") { // a warning: it is not installed
		t.Fatalf("exit %d, %q", code, errs)
	}
	for _, want := range []string{
		"auth: exec", "execCommand: " + filepath.Join(dir, "bin", "aws"), "execInteractiveMode: Never", "execApiVersion: client.authentication.k8s.io/v1beta1",
		"- get-token", "- AWS_PROFILE=ops", "server: https://127.0.0.1:21000",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	// What was printed is read back to the same.
	k, err := clientcmd.Load([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	ext, err := json.Marshal(k.Clusters["prod"].Extensions[execExtension])
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{Extension: ext})
	if err != nil || len(c.ExecArgs) != 6 || c.ExecEnv[0] != "AWS_PROFILE=ops" || c.Direct {
		t.Errorf("%+v, %v", c, err)
	}

	code, out, errs = print("--direct")
	if code != 0 {
		t.Fatalf("exit %d, %q", code, errs)
	}
	golden(t, "testdata/kubeconfig-direct.yaml", strings.ReplaceAll(out, dir, "/home/me"))
	code, out, _ = print("--direct", "--auth", "eks-token", "--eks-cluster", "prod", "--aws-region", "eu-central-1", "--aws-role-arn", "arn:aws:iam::1:role/a")
	for _, want := range []string{"- --direct", "- --auth=eks-token", "- --eks-cluster=prod", "- --aws-region=eu-central-1", "- --aws-role-arn=arn:aws:iam::1:role/a", "server: https://prod.example:6443"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, out)
		}
	}
	// A client of few words, and a plugin behind that wants to know its cluster.
	code, out, _ = print("--direct", "--idle-timeout", "1h", "--auth", "exec", "--exec-command", "/bin/issuer", "--exec-provide-cluster-info", "--provide-cluster-info=false")
	for _, want := range []string{"- --idle-timeout=1h0m0s", "- --exec-provide-cluster-info\n", "- --server=https://prod.example:6443", "provideClusterInfo: false"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, out)
		}
	}
	if code, out, errs = print("--context", "secret", "--direct"); code != 0 || !strings.Contains(errs, "warning: CLIENT_SECRET of the exec plugin") || strings.Contains(errs, "canary") || strings.Contains(errs, "TOKEN_FILE") {
		t.Errorf("exit %d, %q\n%s", code, errs, out)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--context", "told"}, "cannot be passed on"},
		{[]string{"--context", "old"}, "v1alpha1"},
		{[]string{"--direct", "--auth", "sigv4"}, "signs each request"},
		{[]string{"--direct", "--key", "pkcs11:token=a;object=b"}, "cannot be handed out"},
		{[]string{"--direct", "--listen", "https://127.0.0.1:21000"}, "listen"},
		{[]string{"--direct", "--auth", "headers", "--header", "Authorization=Bearer canary"}, "@FILE"},
	} {
		if code, out, errs := print(tt.args...); code == 0 || out != "" || !strings.Contains(errs, tt.want) || strings.Contains(errs, "canary") {
			t.Errorf("%v: exit %d, %q, %q; want %q", tt.args, code, out, errs, tt.want)
		}
	}
}

// Wrong usage of exec --direct; nothing weaker than the command line asks for it.
func TestDirect(t *testing.T) {
	header := filepath.Join(t.TempDir(), "header")
	if err := os.WriteFile(header, []byte("Bearer token-a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	identity := []string{"--auth", "headers", "--header", "Authorization=@" + header}
	info := func(version, server string) map[string]string {
		return map[string]string{"KUBERNETES_EXEC_INFO": `{"apiVersion":"client.authentication.k8s.io/` + version + `","kind":"ExecCredential","spec":{"interactive":false,"lockFilePath":"/a","cluster":{"server":"` + server + `"}}}`}
	}
	for _, version := range []string{"v1", "v1beta1"} {
		code, out, errs := play(t, info(version, "https://prod"), append([]string{"exec", "--direct"}, identity...)...)
		if code != 0 || errs != "" || !strings.HasPrefix(out, `{"apiVersion":"client.authentication.k8s.io/`+version+`","kind":"ExecCredential","status":{"expirationTimestamp":"`) || !strings.HasSuffix(out, `Z","token":"token-a"}}`+"\n") {
			t.Errorf("exit %d, %q, %q", code, out, errs)
		}
	}
	// By hand, and as a bare execproxy.
	if code, out, _ := play(t, nil, append([]string{"exec", "--direct"}, identity...)...); code != 0 || !strings.Contains(out, `client.authentication.k8s.io/v1"`) {
		t.Errorf("by hand: exit %d, %q", code, out)
	}
	if code, out, _ := play(t, info("v1", "https://prod"), append([]string{"--direct"}, identity...)...); code != 0 || !strings.Contains(out, "token-a") {
		t.Errorf("bare: exit %d, %q", code, out)
	}
	with := func(env map[string]string, name, value string) map[string]string { env[name] = value; return env }
	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		want []string
	}{
		{"v1alpha1", info("v1alpha1", "https://prod"), []string{"--direct"}, []string{"v1alpha1", "client.authentication.k8s.io/v1 ", "v1beta1"}},
		{"another cluster", info("v1", "https://evil"), []string{"--direct", "--server", "https://prod"}, []string{"https://prod", "https://evil"}},
		{"plain http", info("v1", "http://prod"), []string{"--direct"}, []string{"http"}},
		{"with a socket", nil, []string{"--direct", "--socket", "/a"}, []string{"socket", "--direct"}},
		{"in the foreground", nil, []string{"--direct", "--foreground"}, []string{"foreground", "--direct"}},
		{"cluster info of no cluster", nil, []string{"--direct", "--auth", "exec", "--exec-command", "issuer", "--exec-provide-cluster-info"}, []string{"exec-provide-cluster-info", "provideClusterInfo"}},
		{"asked for in the environment", with(info("v1", "https://prod"), "EXECPROXY_DIRECT", "true"), nil, []string{"/a"}}, // the lock that nobody holds
		{"asked for in the extension", map[string]string{"KUBERNETES_EXEC_INFO": `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"cluster":{"server":"https://prod","config":{"direct":true}}}}`}, nil, []string{"unknown field"}},
	} {
		args := append([]string{"exec"}, tt.args...)
		if !strings.Contains(strings.Join(args, " "), "--auth") {
			args = append(args, identity...)
		}
		code, out, errs := play(t, tt.env, args...)
		if code == 0 || out != "" || strings.Count(errs, "\n") != 1 || strings.Contains(errs, "token-a") {
			t.Errorf("%s: exit %d, %q, %q", tt.name, code, out, errs)
		}
		for _, want := range tt.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%s: %q does not say %q", tt.name, errs, want)
			}
		}
	}
}
