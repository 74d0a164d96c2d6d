//go:build linux

package imagecredentials

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const ecrImage = "123456789012.dkr.ecr.us-west-2.amazonaws.com/app"

// TestNames: kubelet calls a provider by its file's name, in each version.
func TestNames(t *testing.T) {
	for _, name := range []string{"execproxy-image-credentials", "ecr-credential-provider", "execproxy"} {
		for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				p := provider{Name: name, Version: version, Match: []string{"*.dkr.ecr.*.amazonaws.com"}}
				if name == "execproxy" { // no name of a provider's: the command is named
					p.Args = []string{"image-credentials"}
				}
				r := n.kubelet(job{Config: n.config(p), Lookups: []lookup{{Image: ecrImage}}})
				if got := pulls(r.Found[0]); got[0] != "pulls as AKIDNODE in us-west-2" || r.Stderr != "" {
					t.Errorf("got %q; kubelet logs %q", got, r.Stderr)
				}
			})
		}
	}
	t.Run("a command counts more", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		if r := n.run("", "ecr-credential-provider", "version"); r.code != 0 || !strings.HasPrefix(r.stdout, "execproxy") {
			t.Error(r)
		}
	})
}

// TestPrintedConfig: what --print-config prints, kubelet takes, and finds every
// registry of ECR's under it.
func TestPrintedConfig(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	rules := n.file("registries.yaml", `apiVersion: execproxy.io/v1alpha1
kind: ImageCredentialConfiguration
registries:
- match: registry.test.example:5000/team
  username: robot
  passwordFile: `+n.file("password", "hunter-2718\n")+"\n")
	r := n.run("", "execproxy", "image-credentials", "--print-config", "--service-account-tokens", "--service-account-fallback=node", "--registries", rules)
	if r.code != 0 {
		t.Fatal(r)
	}
	// The directories of a system service are not for tests.
	config := r.stdout
	for from, to := range map[string]string{"value: /run/execproxy-images\n": n.path("r"), "value: /var/lib/execproxy-images\n": n.path("state")} {
		if !strings.Contains(config, from) {
			t.Fatalf("no %q in %s", from, config)
		}
		config = strings.Replace(config, from, "value: "+to+"\n", 1)
	}
	j := job{Config: n.file("provider.yaml", config), Accounts: map[string]map[string]string{"team/app": {roleAnnotation: roleARN}}}
	var want []string
	for _, c := range cases() {
		last := c.execproxy[len(c.execproxy)-1]
		if c.account == "" && last != nobody[0] && c.name != "port 443" {
			j.Lookups = append(j.Lookups, lookup{Image: c.image})
			want = append(want, last)
		}
	}
	j.Lookups = append(j.Lookups, lookup{ecrImage, "team", "app"}, lookup{Image: "registry.test.example:5000/team/app"}, lookup{Image: "registry.test.example:5000/teammate/app"})
	want = append(want, "pulls as ASIAROLE in us-west-2", "pulls as ? in ?", nobody[0])
	res := n.kubelet(j)
	for i, l := range j.Lookups {
		if got := pulls(res.Found[i]); got[0] != want[i] || len(got) != 1 {
			t.Errorf("%s: got %q, want %q; kubelet logs %s", l.Image, got, want[i], res.Stderr)
		}
	}
	if a := res.Found[len(res.Found)-2].Auths; len(a) != 1 || a[0] != (auth{"robot", "hunter-2718"}) {
		t.Errorf("the configured registry got %+v", a)
	}
}

// TestTogether: 200 pods of 200 images at once, and nobody there yet.
func TestTogether(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	j := job{Config: n.config(provider{Name: "execproxy-image-credentials", Match: []string{"*.dkr.ecr.*.amazonaws.com"}}), Together: true}
	for i := range 200 {
		j.Lookups = append(j.Lookups, lookup{Image: fmt.Sprintf("%s-%d", ecrImage, i)})
	}
	r := n.kubelet(j)
	for i, f := range r.Found {
		if got := pulls(f); got[0] != "pulls as AKIDNODE in us-west-2" || f.Auths[0] != r.Found[0].Auths[0] {
			t.Fatalf("pull %d: %q; kubelet logs %s", i, got, r.Stderr)
		}
	}
	if calls, wrong := n.cloud.take(); len(calls) != 1 || len(wrong) > 0 {
		t.Errorf("%d calls upstream for 200 pulls, want 1: %v %q", len(calls), calls, wrong)
	}
	if pids := n.daemons(); len(pids) != 1 {
		t.Errorf("%d daemons run, want 1", len(pids))
	}
	// A kubelet that starts anew has an empty cache; the daemon has not.
	n.kubelet(j)
	if calls, _ := n.cloud.take(); len(calls) != 0 {
		t.Errorf("another kubelet made %d calls upstream, want 0", len(calls))
	}
}

// request is what kubelet writes to its plugin.
func request(image string) string {
	data, _ := json.Marshal(map[string]string{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderRequest", "image": image})
	return string(data)
}

// TestDaemonDown: one clear line within two seconds, whatever is wrong with the daemon.
func TestDaemonDown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ruin func(*node) []string // returns arguments
		says string
	}{
		"nobody at the socket": {func(n *node) []string { return []string{"--socket", n.path("r/none.sock")} },
			"start `execproxy image-credentials --serve --socket "},
		"cannot be started": {func(n *node) []string {
			n.env["XDG_STATE_HOME"] = n.file("a-file", "")
			return nil
		}, "not a directory"},
		"hangs": {func(n *node) []string {
			if r := n.run(request(ecrImage), "execproxy-image-credentials"); r.code != 0 {
				n.t.Fatal(r)
			}
			for _, pid := range n.daemons() {
				must(n.t, syscall.Kill(pid, syscall.SIGSTOP))
				n.eventually("every thread stands still", func() bool { return stopped(pid) })
				n.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			}
			return nil
		}, "does not answer; end it with `execproxy stop --all`, or kill it"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			args := c.ruin(n)
			var r result
			for range 3 { // a busy machine is no daemon that is down
				r = n.run(request(ecrImage), "execproxy-image-credentials", args...)
				if r.took <= 2*time.Second {
					break
				}
			}
			if r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, c.says) || strings.Count(r.stderr, "\n") != 1 || r.took > 2*time.Second {
				t.Errorf("%s", r)
			}
			if name == "cannot be started" {
				n.env["XDG_STATE_HOME"] = n.path("state")
			}
			for _, pid := range n.daemons() {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		})
	}
}

// TestDaemonComesBack: a daemon that was killed, and an upstream that fails or refuses.
func TestDaemonComesBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ask := func() result { return n.run(request(ecrImage), "execproxy-image-credentials") }
	first := ask()
	if first.code != 0 {
		t.Fatal(first)
	}
	var answer struct {
		CacheKeyType, CacheDuration string
		Auth                        map[string]auth
	}
	must(t, json.Unmarshal([]byte(first.stdout), &answer))
	if d, err := time.ParseDuration(answer.CacheDuration); err != nil || d <= 0 || d > 15*time.Minute || answer.CacheKeyType != "Registry" || len(answer.Auth) != 1 {
		t.Errorf("answered %+v", answer)
	}
	for _, pid := range n.daemons() {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	n.cloud.fail(403)
	if r := ask(); r.code != 1 || !strings.Contains(r.stderr, "asking ECR in us-west-2 for a token: AccessDeniedException: the test says no") {
		t.Errorf("AWS refuses: %s", r)
	}
	n.cloud.fail(500)
	if r := ask(); r.code != 1 || !strings.Contains(r.stderr, "asking ECR in us-west-2") {
		t.Errorf("AWS fails: %s", r)
	}
	n.cloud.fail(0)
	if r := ask(); r.code != 0 {
		t.Errorf("AWS is back: %s", r)
	}
	// status and stop know it.
	if r := n.run("", "execproxy", "status"); !strings.Contains(r.stdout, "image-credentials") || !strings.Contains(r.stdout, nodeKey) {
		t.Errorf("status: %s", r)
	}
	sockets, _ := filepath.Glob(n.path("r/execproxy/*"))
	for _, s := range sockets {
		if fi, err := os.Lstat(s); err == nil && fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", s, fi.Mode())
		}
	}
}

// TestSidecar: a daemon that somebody else starts, at a socket of their choice.
func TestSidecar(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must(t, os.Mkdir(n.path("s"), 0o700))
	socket := n.path("s/images.sock")
	serving := n.start("execproxy", "image-credentials", "--serve", "--socket", socket)
	n.eventually("the daemon serves", func() bool { _, err := os.Lstat(socket); return err == nil })
	// The client has no identity of its own.
	delete(n.env, "AWS_SECRET_ACCESS_KEY")
	delete(n.env, "AWS_ACCESS_KEY_ID")
	if r := n.run(request(ecrImage), "execproxy-image-credentials", "--socket", socket); r.code != 0 || !strings.Contains(r.stdout, "-for-"+nodeKey) {
		t.Errorf("%s", r)
	}
	must(t, serving.Process.Signal(syscall.SIGTERM))
	if err := serving.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left")
	}
}
