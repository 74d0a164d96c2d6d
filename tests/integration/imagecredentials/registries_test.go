//go:build linux

package imagecredentials

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestRegistries: registries that are not ECR, each with its source, under kubelet.
// docker-credential-ecr-login is the real one, and gets its token from the same cloud.
func TestRegistries(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.copy(suite.ecrLogin, "docker-credential-ecr-login")
	// A helper of the protocol's words: it verifies what it is asked, and counts.
	must(t, os.WriteFile(n.path("bin/docker-credential-shelf"), []byte(`#!/bin/sh
[ "$1" = get ] || exit 9
read -r server
echo "$server" >> `+n.path("asked")+`
case $server in
  shelf.test.example:5000) echo '{"ServerURL":"shelf.test.example:5000","Username":"shelf","Secret":"hunter-2718-shelf"}';;
  https://index.docker.io/v1/) echo '{"Username":"hub","Secret":"hunter-2718-hub"}';;
  token.test.example) echo '{"Username":"<token>","Secret":"hunter-2718"}';;
  other.test.example) echo '{"ServerURL":"https://evil.example","Username":"x","Secret":"hunter-2718"}';;
  broken.test.example) echo 'hunter-2718 was not accepted'; echo hunter-2718 >&2; exit 1;;
  *) echo 'credentials not found in native keychain'; exit 1;;
esac
`), 0o700))
	must(t, os.WriteFile(n.path("bin/print-token"), []byte("#!/bin/sh\necho hunter-2718-\"$1\"\n"), 0o700))
	docker := n.file("config.json", `{"auths":{"shelf.test.example:5000":{"auth":"bm90OnVzZWQ="}},"credHelpers":{
		"shelf.test.example:5000":"shelf","docker.io":"shelf","token.test.example":"shelf","other.test.example":"shelf",
		"broken.test.example":"shelf","unknown.test.example":"shelf"}}`)
	rules := n.file("registries.yaml", `apiVersion: execproxy.io/v1alpha1
kind: ImageCredentialConfiguration
dockerConfig: `+docker+`
registries:
- match: registry.test.example:5000
  username: robot
  passwordFile: `+n.file("password", "hunter-2718-all\n")+`
- match: registry.test.example:5000/team
  username: team
  passwordFile: `+n.file("team-password", "hunter-2718-team")+`
- match: "*.azurecr.test"
  username: "00000000-0000-0000-0000-000000000000"
  exec: {command: `+n.path("bin/print-token")+`, args: [azure]}
- match: 999999999999.dkr.ecr.us-west-2.amazonaws.com
  helper: ecr-login
- match: open.test.example
  username: x
  passwordFile: `+open(n)+`
`)
	p := provider{Name: "execproxy-image-credentials", Args: []string{"--registries=" + rules},
		Match: []string{"*.test.example", "*.test.example:5000", "*.azurecr.test", "docker.io", "*.dkr.ecr.*.amazonaws.com"}}
	j := job{Config: n.config(p)}
	want := []struct{ image, pulls, says string }{
		{"registry.test.example:5000/app", "robot hunter-2718-all", ""},
		{"registry.test.example:5000/team/app", "team hunter-2718-team", ""},
		{"registry.test.example:5000/team", "team hunter-2718-team", ""},
		{"registry.test.example:5000/teammate/app", "robot hunter-2718-all", ""},
		{"registry.test.example/app", "", ""}, // another port
		{"a.azurecr.test/app", "00000000-0000-0000-0000-000000000000 hunter-2718-azure", ""},
		{"shelf.test.example:5000/app", "shelf hunter-2718-shelf", ""},
		{"shelf.test.example:5000/app2", "shelf hunter-2718-shelf", ""},
		{"docker.io/library/nginx", "hub hunter-2718-hub", ""},
		{"unknown.test.example/app", "", ""},
		{"nowhere.test.example/app", "", ""},
		{"token.test.example/app", "", "has an identity token for token.test.example, which kubelet cannot use"},
		{"other.test.example/app", "", "was asked for other.test.example and answered for another registry"},
		{"broken.test.example/app", "", "docker-credential-shelf failed: exit status 1"},
		{"open.test.example/app", "", "others can read it (mode 0644); run chmod 0600"},
		{"999999999999.dkr.ecr.us-west-2.amazonaws.com/app", "AWS token-1-for-AKIDNODE-in-us-west-2", ""},
	}
	for _, w := range want {
		j.Lookups = append(j.Lookups, lookup{Image: w.image})
	}
	r := n.kubelet(j)
	for i, w := range want {
		got := ""
		for _, a := range r.Found[i].Auths {
			got += fmt.Sprintf("%s %s", a.Username, a.Password)
		}
		if got != w.pulls {
			t.Errorf("%s: pulls as %q, want %q", w.image, got, w.pulls)
		}
		if !strings.Contains(r.Stderr, w.says) {
			t.Errorf("%s: kubelet does not log %q", w.image, w.says)
		}
	}
	if t.Failed() {
		t.Log(r.Stderr)
		log, _ := os.ReadFile(n.path("home/.ecr/log/ecr-login.log"))
		t.Logf("docker-credential-ecr-login: %s", log)
	}
	if n := strings.Count(r.Stderr, "Failed to provide"); n != 4 {
		t.Errorf("kubelet logs %d failures, want 4", n)
	}
	asked, err := os.ReadFile(n.path("asked"))
	must(t, err)
	if n := strings.Count(string(asked), "shelf.test.example"); n != 1 {
		t.Errorf("the helper was asked %d times for one registry, want 1: %q", n, asked)
	}
	if _, wrong := n.cloud.take(); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
}

// open is a password file that everybody can read.
func open(n *node) string {
	path := n.file("open-password", "hunter-2718")
	must(n.t, os.Chmod(path, 0o644))
	return path
}
