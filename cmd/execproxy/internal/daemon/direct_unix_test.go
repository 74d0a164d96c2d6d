//go:build unix

package daemon

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// issuing is a config whose plugin hands out token-1, token-2, …, fails while a file is
// there, and counts.
func issuing(t *testing.T) (c *config.Config, dir string, calls func() int) {
	t.Helper()
	dir = t.TempDir()
	command := filepath.Join(dir, "issuer")
	text := "#!/bin/sh\necho >> " + dir + "/calls\n[ -e " + dir + "/fail ] && { echo 'log in' >&2; exit 1; }\n" +
		`printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"token-%d"}}' $(wc -l < ` + dir + "/calls)\n"
	if err := os.WriteFile(command, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	c = &config.Config{Identity: config.Identity{Auth: config.AuthExec, ExecCommand: command}, Direct: true}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	return c, dir, func() int {
		data, _ := os.ReadFile(filepath.Join(dir, "calls"))
		return strings.Count(string(data), "\n")
	}
}

// keeper runs a daemon without a proxy.
func keeper(t *testing.T, c *config.Config) *live {
	t.Helper()
	dir, err := os.MkdirTemp("", "ep")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := Places{Runtime: filepath.Join(dir, "r"), State: filepath.Join(dir, "s")}
	return begin(t, c, Options{ID: "d", Life: lifeDirect, Idle: time.Hour, Places: p, Environ: os.Environ(), Sockets: []string{p.Socket("d")}})
}

// A client that asks again within the life of its token was refused with it: it gets
// another one, and one that goes on asking does not get one each time.
func TestAskedAgain(t *testing.T) {
	c, dir, calls := issuing(t)
	r := keeper(t, c)
	ask := func(client int) string {
		t.Helper()
		s, err := newController(r.places.Socket("d")).document(t.Context(), Ask{Direct: true, Client: client})
		if err != nil {
			t.Fatal(err)
		}
		return s.Token
	}
	for _, client := range []int{1, 2, 3, 0, 0} {
		if got := ask(client); got != "token-1" {
			t.Errorf("client %d: %s", client, got)
		}
	}
	if got := ask(2); got != "token-2" {
		t.Errorf("asked again by 2: %s", got)
	}
	if got := ask(1); got != "token-2" || calls() != 2 {
		t.Errorf("asked again by 1: %s after %d calls, want what is there since", got, calls())
	}
	for range 50 {
		ask(2)
	}
	if n := calls(); n > 4 {
		t.Errorf("50 refusals in a row made %d calls", n)
	}
	// One that cannot be replaced serves on, for whoever has no user who could help.
	if err := os.WriteFile(filepath.Join(dir, "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); !r.d.front.Load().id.bearer.cache.Stale(); time.Sleep(10 * time.Millisecond) {
		if ask(2); time.Now().After(end) {
			t.Fatal("no refusal led to another attempt")
		}
	}
	if got := ask(9); !strings.HasPrefix(got, "token-") {
		t.Errorf("got %q", got)
	}
	var refused *refusal
	if s, err := newController(r.places.Socket("d")).document(t.Context(), Ask{Direct: true, Client: 10, Interactive: true}); !errors.As(err, &refused) || !refused.Login {
		t.Errorf("with a user: %v, %v", s, err)
	}
}

// What proxies and keepers of credentials give away is not the same, whoever asks.
func TestNoProxyHandsOutCredentials(t *testing.T) {
	c, _, _ := issuing(t)
	c.MetricsAddress = "127.0.0.1:0"
	r := keeper(t, c)
	if _, err := newController(r.places.Socket("d")).document(t.Context(), Ask{}); err == nil || !strings.Contains(err.Error(), "no proxy") {
		t.Errorf("a keeper was asked for a proxy: %v", err)
	}
	res, err := http.Get(r.d.status().Metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(text), `execproxy_obtentions_total{provider="none",result="error"} 1`) {
		t.Errorf("metrics: %v\n%s", err, text)
	}
	if read, err := Reconfigure(t.Context(), r.places, Status{ID: "d"}); read || err != nil {
		t.Errorf("reload: %v, %v", read, err)
	}
	if s := r.d.status(); s.Reload != nil || s.Socket != "" || len(s.Listeners) != 0 {
		t.Errorf("it says that it serves at %q, %q", s.Socket, s.Listeners)
	}
	_, proxied, p := playground(t)
	begin(t, proxied, Options{ID: "p", Life: lifeIdle, Idle: time.Hour, Places: p, Sockets: []string{p.Socket("p")}})
	if s, err := newController(p.Socket("p")).document(t.Context(), Ask{Direct: true, Client: 1}); err == nil || s != nil || !strings.Contains(err.Error(), "does not hand out") {
		t.Errorf("a proxy was asked for a credential: %v, %v", s, err)
	}
	if ID(c, nil, lifeDirect) == ID(c, nil, lifeIdle) {
		t.Error("they have one id")
	}
}

// A plugin's user helps where the plugin alone cannot, and what came of it is kept.
func TestLoginIsAskedFor(t *testing.T) {
	c, dir, _ := issuing(t)
	given := &clientauthentication.Status{Token: "given", ExpirationTimestamp: time.Now().Add(1500 * time.Millisecond)}
	r := begin(t, c, func() Options {
		d, err := os.MkdirTemp("", "ep")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(d) })
		p := Places{Runtime: filepath.Join(d, "r"), State: filepath.Join(d, "s")}
		return Options{ID: "d", Life: lifeDirect, Idle: time.Hour, Places: p, Environ: os.Environ(), Sockets: []string{p.Socket("d")}, Credential: given}
	}())
	ctl := newController(r.places.Socket("d"))
	if s, err := ctl.document(t.Context(), Ask{Direct: true}); err != nil || s.Token != "given" {
		t.Fatalf("%v, %v", s, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var refused *refusal
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if _, err := ctl.document(t.Context(), Ask{Direct: true}); errors.As(err, &refused) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a token that is over is handed out")
		}
	}
	if !refused.Login || !strings.Contains(refused.Message, "log in") {
		t.Errorf("%+v", refused)
	}
	for _, bad := range []*clientauthentication.Status{{Token: "a b"}, {Token: "over", ExpirationTimestamp: time.Now().Add(-time.Minute)}, {ClientKeyData: "k", ClientCertificateData: "c"}} {
		if _, err := ctl.document(t.Context(), Ask{Direct: true, Credential: bad}); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
	if s, err := ctl.document(t.Context(), Ask{Direct: true, Credential: &clientauthentication.Status{Token: "typed"}}); err != nil || s.Token != "typed" {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := ctl.document(t.Context(), Ask{Direct: true}); err != nil || s.Token != "typed" {
		t.Errorf("the next client: %v, %v", s, err)
	}
}

// Whatever may decide who a plugin says we are makes another daemon of it; a new terminal
// does not.
func TestIDOfPlugin(t *testing.T) {
	c, _, _ := issuing(t)
	base := []string{"HOME=/home/me", "PATH=/bin", "TERM=a", "PWD=/a", "SSH_TTY=/dev/pts/1", "_=x", "EXECPROXY_LOG_LEVEL=debug"}
	id := ID(c, base, lifeDirect)
	for _, same := range []string{"TERM=b", "PWD=/b", "SSH_TTY=/dev/pts/2", "SHLVL=3", "TMUX_PANE=%1", "EXECPROXY_AUTH=exec", "DISPLAY=:1", "KUBECONFIG=/a", "ITERM_SESSION_ID=w0t1", "KITTY_WINDOW_ID=2", "SYSTEMD_EXEC_PID=1"} {
		if ID(c, append(slices.Clone(base), same), lifeDirect) != id {
			t.Errorf("%s makes another daemon", same)
		}
	}
	for _, other := range []string{"AWS_PROFILE=b", "CLOUDSDK_CONFIG=/a", "HOME=/b", "SSH_AUTH_SOCK=/a", "ANYTHING=1", "HTTPS_PROXY=http://a"} {
		if ID(c, append(slices.Clone(base), other), lifeDirect) == id {
			t.Errorf("%s makes no other daemon", other)
		}
	}
	for _, e := range chainedEnviron(append(slices.Clone(base), "KUBERNETES_EXEC_INFO={}")) {
		if !chainedVariable(e[:strings.Index(e, "=")]) && !strings.HasPrefix(e, "TERM=") {
			t.Errorf("%s is passed on and not part of the id", e)
		}
	}
}

// From files, without a daemon.
func TestDirectFiles(t *testing.T) {
	_, c, _ := playground(t)
	dir := t.TempDir()
	header := func(text string) string {
		path := filepath.Join(dir, "header")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "Authorization=@" + path
	}
	s, err := Direct(t.Context(), c)
	if err != nil || s.Token != "" || strings.Contains(s.ClientCertificateData, "PRIVATE") || strings.Contains(s.ClientKeyData, "CERTIFICATE") {
		t.Fatalf("%v, %v", s, err)
	}
	if b, rest := pem.Decode([]byte(s.ClientKeyData)); b == nil || len(rest) != 0 {
		t.Error("not one key")
	}
	for _, tt := range []struct {
		c    config.Identity
		want string // of the token, or else of the error
		good bool
	}{
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{header("Bearer good\n")}}, "good", true},
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{"authorization=bearer  inline"}}, "inline", true},
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{"X-Token=canary"}}, "no other header", false},
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{"Authorization=Bearer canary", "X-A=b"}}, "no other header", false},
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{"Authorization=Bearer canary", "Authorization=Bearer canary"}}, "no other header", false},
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{"Authorization=Basic canary"}}, "Bearer TOKEN", false},
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{"Authorization=canary"}}, "Bearer TOKEN", false},
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{"Authorization=Bearer canary canary"}}, "space", false},
		{config.Identity{Auth: config.AuthHeaders, Headers: []string{"Authorization=Bearer"}}, "empty", false},
		{config.Identity{Auth: config.AuthSigV4}, "signs each request", false},
		{config.Identity{Auth: config.AuthMTLS, Key: "tpm:handle=0x81000100", Cert: "/c"}, "cannot be handed out", false},
		{config.Identity{Auth: config.AuthMTLS, Key: "pkcs11:token=a;object=b"}, "cannot be handed out", false},
		{config.Identity{Auth: config.AuthMTLS, Key: "/does/not/exist"}, "/does/not/exist", false},
	} {
		s, err := Direct(t.Context(), &config.Config{Identity: tt.c})
		switch {
		case tt.good && (err != nil || s.Token != tt.want || time.Until(s.ExpirationTimestamp) < time.Minute):
			t.Errorf("%+v: %v, %v", tt.c, s, err)
		case !tt.good && (err == nil || s != nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "canary")):
			t.Errorf("%+v: %v, %v; want %q", tt.c, s, err, tt.want)
		}
	}
	if s, err := Direct(t.Context(), &config.Config{Identity: config.Identity{Auth: config.AuthExec}}); s != nil || err != nil {
		t.Error(fmt.Sprint(s, err))
	}
}
