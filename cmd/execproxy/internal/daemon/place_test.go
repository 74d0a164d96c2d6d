package daemon

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

func TestFindPlaces(t *testing.T) {
	for _, tt := range []struct {
		env            map[string]string
		runtime, state string
		err            string
	}{
		{env: map[string]string{"XDG_RUNTIME_DIR": "/run/user/7", "HOME": "/h"}, runtime: "/run/user/7/execproxy", state: "/h/.local/state/execproxy"},
		{env: map[string]string{"HOME": "/h"}, runtime: "/h/.local/state/execproxy/run", state: "/h/.local/state/execproxy"},
		{env: map[string]string{"XDG_STATE_HOME": "/s"}, runtime: "/s/execproxy/run", state: "/s/execproxy"},
		{env: map[string]string{"XDG_STATE_HOME": "s"}, err: "XDG_STATE_HOME"},
		{env: map[string]string{"HOME": "/h", "XDG_RUNTIME_DIR": "r"}, err: "XDG_RUNTIME_DIR"},
		{env: map[string]string{"HOME": "h"}, err: "HOME"},
	} {
		p, err := FindPlaces(func(k string) string { return tt.env[k] })
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v: error %v, want one about %s", tt.env, err, tt.err)
			}
			continue
		}
		if err != nil || p.Runtime != tt.runtime || p.State != tt.state {
			t.Errorf("%v: %+v, %v", tt.env, p, err)
		}
	}
}

func TestID(t *testing.T) {
	base := func() *config.Config {
		return &config.Config{
			Cluster:  config.Cluster{Server: "https://prod:6443"},
			Identity: config.Identity{Auth: config.AuthSigV4, AWSRegion: "eu-central-1"},
		}
	}
	environ := []string{"AWS_PROFILE=a", "AWS_REGION=b", "TERM=x"}
	id := ID(base(), environ, lifeLock)
	if len(id) != 16 {
		t.Errorf("ID %q is not 16 digits", id)
	}
	// What means nothing changes nothing.
	for name, other := range map[string]string{
		"order of the environment": ID(base(), []string{"TERM=y", "AWS_REGION=b", "AWS_PROFILE=a"}, lifeLock),
		"log level":                ID(with(base(), func(c *config.Config) { c.LogLevel = "debug" }), environ, lifeLock),
	} {
		if other != id {
			t.Errorf("%s changes the ID", name)
		}
	}
	// What decides who we are, where we go or how long we live does.
	for name, other := range map[string]string{
		"profile":   ID(base(), []string{"AWS_PROFILE=c", "AWS_REGION=b"}, lifeLock),
		"life":      ID(base(), environ, lifeIdle),
		"server":    ID(with(base(), func(c *config.Config) { c.Server = "https://dev" }), environ, lifeLock),
		"role":      ID(with(base(), func(c *config.Config) { c.AWSRoleARN = "arn" }), environ, lifeLock),
		"policy":    ID(with(base(), func(c *config.Config) { c.ForeignAuthorization = config.Passthrough }), environ, lifeLock),
		"way":       ID(base(), append([]string{"HTTPS_PROXY=http://p"}, environ...), lifeLock),
		"authority": ID(with(base(), func(c *config.Config) { c.CertificateAuthorityData = []byte("x") }), environ, lifeLock),
		"home":      ID(base(), append([]string{"HOME=/other"}, environ...), lifeLock), // of ~/.aws
		"roots":     ID(base(), append([]string{"SSL_CERT_FILE=/r"}, environ...), lifeLock),
		"pair":      ID(with(base(), func(c *config.Config) { c.CertPEM = []byte("x") }), environ, lifeLock),
	} {
		if other == id {
			t.Errorf("%s does not change the ID", name)
		}
	}
	// The AWS environment is nobody else's business.
	mtls := with(base(), func(c *config.Config) { c.Identity = config.Identity{Auth: config.AuthMTLS, Key: "/k"} })
	if ID(mtls, environ, lifeLock) != ID(mtls, nil, lifeLock) {
		t.Error("AWS variables change the ID of a proxy with a key")
	}
}

// The same identity may serve at two addresses at a time.
func TestServeID(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range []config.Config{
		{}, {Listen: []string{"unix:///a"}}, {Listen: []string{"unix:///b"}},
		{Listen: []string{"https://127.0.0.1:0"}, KubeconfigOut: "/a"}, {Listen: []string{"https://127.0.0.1:0"}, KubeconfigOut: "/b"},
	} {
		ids[serveID(&c, nil)] = true
	}
	if len(ids) != 5 {
		t.Errorf("%d IDs, want 5", len(ids))
	}
}

func with(c *config.Config, f func(*config.Config)) *config.Config { f(c); return c }

func TestExpiry(t *testing.T) {
	for idle, want := range map[time.Duration]time.Duration{
		0: mostExpiry, 5 * time.Minute: mostExpiry, 2 * time.Minute: 96 * time.Second, time.Second: leastExpiry,
	} {
		d := &Daemon{opt: Options{Idle: idle}}
		if got := d.expiry(); got != want {
			t.Errorf("idle %v: %v, want %v", idle, got, want)
		}
	}
}

// A refusal names the variable that led there; nothing at all is no refusal.
func TestPlacesCheck(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes of directories are POSIX")
	}
	dir := t.TempDir()
	p := Places{Runtime: filepath.Join(dir, "run", "execproxy"), State: filepath.Join(dir, "state", "execproxy")}
	if err := p.Check(); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(p.Runtime)); err == nil {
		t.Error("it made the directory")
	}
	for path, variable := range map[string]string{p.Runtime: "XDG_RUNTIME_DIR", p.Authority(): "XDG_STATE_HOME", filepath.Join(dir, "own"): ""} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := p.open(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		_, err := p.open(path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), variable) || variable == "" && strings.Contains(err.Error(), "XDG_") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := p.Check(); err == nil {
		t.Error("a directory of everybody passes")
	}
}
