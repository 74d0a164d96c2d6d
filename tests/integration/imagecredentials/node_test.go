//go:build linux

package imagecredentials

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// suite is what all tests share: the programs, built from source.
var suite struct {
	dir       string
	execproxy string
	reference string // ECR's own provider
	ecrLogin  string // a docker-credential helper
}

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "kubelet" {
		if err := playKubelet(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	var err error
	if suite.dir, err = os.MkdirTemp("", "epi-"); err == nil {
		defer os.RemoveAll(suite.dir)
		err = build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	code = m.Run()
	for pid, what := range processes(suite.dir) {
		fmt.Fprintf(os.Stderr, "integration: left behind: process %d: %s\n", pid, what)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		code = 1
	}
	return code
}

// build makes the programs. Each comes from the module that pins it.
func build() error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	for _, p := range []struct {
		path     *string
		dir, pkg string
	}{
		{&suite.execproxy, "../../..", "./cmd/execproxy"},
		{&suite.reference, "reference", "k8s.io/cloud-provider-aws/cmd/ecr-credential-provider"},
		{&suite.ecrLogin, "ecr-login", "github.com/awslabs/amazon-ecr-credential-helper/ecr-login/cli/docker-credential-ecr-login"},
	} {
		*p.path = filepath.Join(suite.dir, filepath.Base(p.pkg))
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags=netgo,osusergo", "-o", *p.path, p.pkg)
		cmd.Dir, cmd.Env = p.dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", p.pkg, err, out)
		}
	}
	return nil
}

// A node is the world of one test: what kubelet's environment is, and a provider
// directory with execproxy under several names.
type node struct {
	t     *testing.T
	dir   string
	env   map[string]string
	cloud *cloud
	seen  []string // what kubelet logged
}

var nodes struct {
	sync.Mutex
	n int
}

func newNode(t *testing.T) *node {
	t.Helper()
	nodes.Lock()
	nodes.n++
	n := &node{t: t, dir: filepath.Join(suite.dir, "n"+strconv.Itoa(nodes.n)), cloud: newCloud(t)}
	nodes.Unlock()
	for _, d := range []string{"", "bin", "r", "state", "home"} {
		must(t, os.Mkdir(n.path(d), 0o700))
	}
	// Copies, so that a process tells whose it is.
	n.copy(suite.execproxy, "execproxy")
	n.copy(suite.reference, "reference")
	for _, name := range []string{"execproxy-image-credentials", "ecr-credential-provider"} {
		must(t, os.Symlink("execproxy", n.path("bin/"+name)))
	}
	n.env = map[string]string{
		"PATH": n.path("bin") + ":/usr/bin:/bin", "XDG_RUNTIME_DIR": n.path("r"), "XDG_STATE_HOME": n.path("state"), "HOME": n.path("home"),
		"HTTPS_PROXY": n.cloud.url, "AWS_CA_BUNDLE": n.cloud.roots, "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-2",
		"AWS_ACCESS_KEY_ID": nodeKey, "AWS_SECRET_ACCESS_KEY": nodeSecret, "AWS_MAX_ATTEMPTS": "1",
		// Every process would wait a second for the kubelet role's.
		"GORACE": "atexit_sleep_ms=0",
	}
	t.Cleanup(n.clean)
	return n
}

func (n *node) copy(from, name string) {
	n.t.Helper()
	must(n.t, os.Link(from, n.path("bin/"+name)))
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) file(name, content string) string {
	n.t.Helper()
	must(n.t, os.WriteFile(n.path(name), []byte(content), 0o600))
	return n.path(name)
}

func (n *node) environ() (env []string) {
	for k, v := range n.env {
		env = append(env, k+"="+v)
	}
	return env
}

// clean ends the daemons, and looks that nobody told a secret.
func (n *node) clean() {
	if r := n.run("", "execproxy", "stop", "--all"); r.code != 0 {
		n.t.Errorf("stop --all: %s", r)
	}
	for pid, what := range processes(n.dir) {
		n.t.Errorf("process %d is left after stop --all: %s", pid, what)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	logs, _ := filepath.Glob(n.path("state/execproxy/log/*"))
	for _, log := range logs {
		data, err := os.ReadFile(log)
		must(n.t, err)
		n.seen = append(n.seen, string(data))
		if n.t.Failed() {
			n.t.Logf("%s:\n%s", filepath.Base(log), data)
		}
	}
	for _, text := range n.seen {
		for _, secret := range []string{nodeSecret, roleSecret, roleSession, "token-1-for", "token-2-for", "hunter-2718", "eyJ", b64.EncodeToString([]byte("AWS:"))[:5]} {
			if strings.Contains(text, secret) {
				n.t.Errorf("a log holds %q:\n%s", secret, text)
			}
		}
	}
}

// result is what became of a program.
type result struct {
	stdout, stderr string
	code           int
	took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d after %v\nstdout: %s\nstderr: %s", r.code, r.took.Round(time.Millisecond), r.stdout, r.stderr)
}

// run runs a program of the provider directory as kubelet does.
func (n *node) run(stdin, name string, args ...string) result {
	n.t.Helper()
	cmd := exec.Command(n.path("bin/"+name), args...)
	cmd.Env, cmd.Dir = n.environ(), "/"
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	begin := time.Now()
	err := cmd.Run()
	r := result{stdout: stdout.String(), stderr: stderr.String(), took: time.Since(begin)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	case err != nil:
		n.t.Fatal(err)
	}
	return r
}

// daemons are the pids of the node's daemons.
func (n *node) daemons() (pids []int) {
	for pid, what := range processes(n.dir) {
		if strings.Contains(what, "image-credentials-daemon") || strings.Contains(what, "--serve") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processes are those that were started below dir, by their command lines.
func processes(dir string) map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.HasPrefix(line, []byte(dir+"/")) {
			found[pid] = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// start starts a program of the provider directory beside the test.
func (n *node) start(name string, args ...string) *exec.Cmd {
	n.t.Helper()
	cmd := exec.Command(n.path("bin/"+name), args...)
	cmd.Env, cmd.Dir = n.environ(), "/"
	must(n.t, cmd.Start())
	n.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// eventually waits for a state that tells nobody of its coming.
func (n *node) eventually(what string, check func() bool) {
	n.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !check(); <-tick.C {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// stopped tells whether all of a process stands still: a signal stops one thread
// after the other.
func stopped(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, task := range tasks {
		if stat, err := os.ReadFile(task); err == nil && !bytes.Contains(stat, []byte(") T ")) {
			return false
		}
	}
	return true
}
