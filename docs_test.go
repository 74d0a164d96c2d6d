package execproxy_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

// pages are what people read before they run something.
var pages = func() []string {
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		panic(err)
	}
	return append([]string{"README.md", "SECURITY.md", "ARCHITECTURE.md"}, docs...)
}()

// built is where the program is, once a test has needed it.
var built string

// binary is the program, built once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "execproxy-docs-")
	if err != nil {
		return "", err
	}
	built = dir
	bin := filepath.Join(dir, "execproxy")
	if runtime.GOOS == "windows" {
		bin += ".exe"
	}
	out, err := exec.Command("go", "build", "-o", bin, "./cmd/execproxy").CombinedOutput()
	if err != nil {
		_, _ = os.Stderr.Write(out)
	}
	return bin, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// execproxy runs the program as a user without any configuration.
func execproxy(t *testing.T, env []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Env = append([]string{"HOME=" + dir, "LocalAppData=" + dir, "PATH=" + os.Getenv("PATH"), "AWS_EC2_METADATA_DISABLED=true"}, env...)
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err = cmd.Run()
	return out.String(), complaint.String(), err
}

// TestReadmeFlags: the table of flags is what the binary says of itself.
func TestReadmeFlags(t *testing.T) {
	_, got, ok := strings.Cut(read(t, "README.md"), "<!-- flags:begin -->")
	got, _, ok2 := strings.Cut(got, "<!-- flags:end -->")
	if !ok || !ok2 {
		t.Fatal("README.md: no table between flags:begin and flags:end")
	}
	want, stderr, err := execproxy(t, nil, "docs", "flags")
	if err != nil {
		t.Fatalf("execproxy docs flags: %v\n%s", err, stderr)
	}
	if strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Error("README.md: the table of flags is not the binary's; run `make docs`")
	}
}

// foreign are flags of other programs that our pages name.
var foreign = []string{
	// kube-scheduler, kube-apiserver
	"--authentication-kubeconfig", "--authorization-kubeconfig", "--leader-elect-lease-duration", "--leader-elect-renew-deadline",
	"--leader-elect-retry-period", "--authentication-token-webhook-config-file", "--authorization-webhook-config-file",
	"--token", "--as", "--retries", // kubectl
	"--verb", "--resource", "--clusterrole", // kubectl create
	"--use-service-account-credentials",                                         // kube-controller-manager
	"--image-credential-provider-bin-dir", "--image-credential-provider-config", // kubelet
	"--unix-socket",   // curl
	"--user", "--now", // systemctl
	"--plain",  // a program of the reader's
	"--client", // our bench
}

var (
	flagName = regexp.MustCompile("(?:^|[\\s`\\[(])(--[a-z][a-z-]+)")
	commands = regexp.MustCompile(`(?m)^  ([a-z-]+) `)
)

// TestPagesNameFlagsThatExist: a flag that a page names is a flag of a command.
func TestPagesNameFlagsThatExist(t *testing.T) {
	overview, stderr, err := execproxy(t, nil, "help")
	if err != nil {
		t.Fatalf("execproxy help: %v\n%s", err, stderr)
	}
	known := slices.Clone(foreign)
	for _, c := range commands.FindAllStringSubmatch(overview, -1) {
		known = append(known, flagsOf(t, c[1])...)
	}
	if len(known) < 20 {
		t.Fatalf("help names only %v", known)
	}
	for _, page := range pages {
		for _, f := range flagName.FindAllStringSubmatch(read(t, page), -1) {
			if !slices.Contains(known, f[1]) {
				t.Errorf("%s names %s, which no command has", page, f[1])
			}
		}
	}
}

// flagsOf are the flags of a command, or of all those of a family.
func flagsOf(t *testing.T, command ...string) (flags []string) {
	t.Helper()
	usage, stderr, err := execproxy(t, nil, append([]string{"help"}, command...)...)
	if err != nil {
		t.Fatalf("execproxy help %s: %v\n%s", command, err, stderr)
	}
	for _, f := range flagName.FindAllStringSubmatch(usage, -1) {
		flags = append(flags, f[1])
	}
	if _, family, ok := strings.Cut(usage, "\nCommands:\n"); ok && len(command) == 1 {
		for line := range strings.Lines(family) {
			if words := strings.Fields(line); len(words) > 2 && words[0] == command[0] {
				flags = append(flags, flagsOf(t, words[:2]...)...)
			}
		}
	}
	return flags
}

var block = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestExamplesDecode: the examples of the configuration page are read to the
// point where a file is missing that an example cannot have.
func TestExamplesDecode(t *testing.T) {
	examples := block.FindAllStringSubmatch(read(t, "docs/config.md"), -1)
	if len(examples) != 2 {
		t.Fatalf("docs/config.md has %d YAML examples, not the file and the extension", len(examples))
	}

	file := filepath.Join(t.TempDir(), "proxy.yaml")
	if err := os.WriteFile(file, []byte(examples[0][1]), 0o600); err != nil {
		t.Fatal(err)
	}
	missing(t, filepath.Join(filepath.Dir(file), "me."), nil, "serve", "--config", file)

	var kubeconfig struct {
		Clusters []struct {
			Cluster struct {
				Server     string `json:"server"`
				Extensions []struct {
					Extension json.RawMessage `json:"extension"`
				} `json:"extensions"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if err := yaml.Unmarshal([]byte(examples[1][1]), &kubeconfig); err != nil {
		t.Fatal(err)
	}
	cluster := kubeconfig.Clusters[0].Cluster
	info, err := json.Marshal(map[string]any{
		"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
		"spec": map[string]any{"interactive": false,
			"cluster": map[string]any{"server": cluster.Server, "config": cluster.Extensions[0].Extension}},
	})
	if err != nil {
		t.Fatal(err)
	}
	profile := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(profile, []byte("[profile ops]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing(t, "/etc/prod/ca.crt", []string{"AWS_CONFIG_FILE=" + profile, "KUBERNETES_EXEC_INFO=" + string(info)}, "exec")
}

// missing runs execproxy, which must fail for the want of a file alone.
func missing(t *testing.T, file string, env []string, args ...string) {
	t.Helper()
	stdout, stderr, err := execproxy(t, env, args...)
	if err == nil || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, file) {
		t.Errorf("execproxy %s: %v, stdout %q, stderr %q; want one line that misses %s", strings.Join(args, " "), err, stdout, stderr, file)
	}
}

func read(t *testing.T, page string) string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
