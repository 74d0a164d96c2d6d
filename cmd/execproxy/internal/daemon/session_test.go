package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

// A sidecar that is started again takes the clients of the one before: they have
// read its pair once and never read it again.
func TestSidecarKeepsItsSession(t *testing.T) {
	_, c, p := playground(t)
	c.KubeconfigOut = "/run/kubeconfig"
	pair := func(life string) (ca, cert []byte) {
		t.Helper()
		own := *c
		r := begin(t, &own, Options{ID: life, Life: life, Fixed: true, NoDrain: true, Places: p, Sockets: []string{p.Socket(life)}, Loopback: []string{"127.0.0.1:0"}})
		ca, cert, _, err := r.d.LoopbackSession()
		if err != nil {
			t.Fatal(err)
		}
		r.cancel()
		r.gone(t)
		return ca, cert
	}
	ca, cert := pair(lifeServe)
	if again, same := pair(lifeServe); !bytes.Equal(ca, again) || !bytes.Equal(cert, same) {
		t.Error("the second one has another authority or pair")
	}
	// A plugin's proxy has a client that asks again: nothing of it is kept.
	if _, other := pair(lifeIdle); bytes.Equal(cert, other) {
		t.Error("a plugin's proxy has the sidecar's pair")
	}
	if files, _ := filepath.Glob(filepath.Join(p.Sessions(), "*")); len(files) != 1 {
		t.Errorf("kept: %q, want one file", files)
	}
	// As somebody else it must not open for those clients.
	c.AWSRoleARN = "arn"
	if _, other := pair(lifeServe); bytes.Equal(cert, other) {
		t.Error("another identity has the same pair")
	}
}

// A session that others can read is none. Without a kubeconfig nobody needs it.
func TestSidecarRefusesOpenSession(t *testing.T) {
	_, c, p := playground(t)
	if err := os.MkdirAll(p.Sessions(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p.Sessions(), 0o755); err != nil {
		t.Fatal(err)
	}
	o := Options{ID: "x", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{p.Socket("x")}, LogWriter: t.Output()}
	out := *c
	out.KubeconfigOut = "/run/kubeconfig"
	if err := Run(t.Context(), &out, o); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("it started with a session directory that is open to others: %v", err)
	}
	r := begin(t, c, o)
	if w := strings.Join(r.d.status().Warnings, "\n"); !strings.Contains(w, "0700") {
		t.Errorf("warnings: %q", w)
	}
}

func TestSessionID(t *testing.T) {
	environ := []string{"AWS_PROFILE=a", "AWS_SECRET_ACCESS_KEY=one", "HTTPS_PROXY=http://p", "PATH=/bin"}
	base := func() *config.Config {
		return &config.Config{
			Cluster:  config.Cluster{Server: "https://prod:6443", CertificateAuthorityData: []byte("ca")},
			Identity: config.Identity{Auth: config.AuthSigV4, AWSRegion: "eu-central-1"}, KubeconfigOut: "/run/a", Listen: []string{"https://127.0.0.1:1"},
		}
	}
	id := SessionID(base(), environ)
	for name, same := range map[string]string{
		"secret": SessionID(base(), []string{"AWS_PROFILE=a", "AWS_SECRET_ACCESS_KEY=two"}),
		"ca":     SessionID(with(base(), func(c *config.Config) { c.CertificateAuthorityData = []byte("b") }), environ),
		"policy": SessionID(with(base(), func(c *config.Config) { c.ForeignAuthorization = config.Passthrough }), environ),
		"listen": SessionID(with(base(), func(c *config.Config) { c.Listen = nil }), environ),
		"renew":  SessionID(with(base(), func(c *config.Config) { c.Renew = config.RenewNewKey }), environ),
	} {
		if same != id {
			t.Errorf("%s changes the session", name)
		}
	}
	for name, other := range map[string]string{
		"server":  SessionID(with(base(), func(c *config.Config) { c.Server = "https://dev:6443" }), environ),
		"name":    SessionID(with(base(), func(c *config.Config) { c.TLSServerName = "dev" }), environ),
		"role":    SessionID(with(base(), func(c *config.Config) { c.AWSRoleARN = "arn" }), environ),
		"profile": SessionID(base(), []string{"AWS_PROFILE=b"}),
		"key":     SessionID(with(base(), func(c *config.Config) { c.Identity = config.Identity{Auth: config.AuthMTLS, Key: "/k"} }), environ),
		"out":     SessionID(with(base(), func(c *config.Config) { c.KubeconfigOut = "/run/b" }), environ),
		"socket":  SessionID(with(base(), func(c *config.Config) { c.KubeconfigOut = ""; c.Listen = []string{"unix:///a"} }), environ),
	} {
		if other == id {
			t.Errorf("%s does not change the session", name)
		}
	}
	// A PIN in the key's URI must not be found out from a file's name.
	token := func(pin string) string {
		return SessionID(with(base(), func(c *config.Config) {
			c.Identity = config.Identity{Auth: config.AuthMTLS, Key: "pkcs11:token=t;object=o?pin-value=" + pin}
		}), nil)
	}
	if token("pin-2718") != token("pin-3141") {
		t.Error("the PIN is in the session's name")
	}
}

// A service is told another thing about itself at each start. A plugin behind the
// proxy, of whose environment all may say who it is, is not told.
func TestSessionOfService(t *testing.T) {
	c := with(&config.Config{Cluster: config.Cluster{Server: "https://prod"}}, func(c *config.Config) {
		c.Auth, c.ExecCommand, c.KubeconfigOut = config.AuthExec, "login", "/run/a"
	})
	start := func(n string) string {
		return SessionID(c, []string{
			"PATH=/bin", "SYSTEMD_EXEC_PID=" + n, "MANAGERPID=" + n, "INVOCATION_ID=" + n, "JOURNAL_STREAM=8:" + n,
			"NOTIFY_SOCKET=/run/" + n, "LISTEN_PID=" + n, "WATCHDOG_PID=" + n, "MEMORY_PRESSURE_WATCH=/sys/" + n,
		})
	}
	if start("1") != start("2") {
		t.Error("a service that is started again has another session")
	}
}

// The pair of an inline identity may be another at the next start, for the same user.
func TestSessionOfInlinePair(t *testing.T) {
	api, c, _ := playground(t)
	inline := func(user string) string {
		_, cert, err := api.Issue(user)
		if err != nil {
			t.Fatal(err)
		}
		own := *c
		own.Key, own.CertPEM = "", cert
		return SessionID(&own, nil)
	}
	jane := inline("jane")
	if renewed := inline("jane"); renewed != jane {
		t.Error("a renewed certificate makes another session")
	}
	if jane == inline("joan") {
		t.Error("two users have one session")
	}
}
