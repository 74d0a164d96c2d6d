package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/execproxy/execproxy/lockfile"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

func (b *bench) mtls(ctx context.Context) (*target, error) {
	return b.throughPlugin(ctx, nameMTLS, b.mtlsArgs())
}

// sigv4 sends bodies over 3 MiB without a hash; smaller ones it hashes, as always.
func (b *bench) sigv4(ctx context.Context) (*target, error) {
	return b.throughPlugin(ctx, nameSigV4, []string{"exec", "--auth", "sigv4", "--aws-region", "eu-central-1", "--unsigned-payload"})
}

func (b *bench) mtlsArgs() []string {
	return []string{"exec", "--auth", "mtls", "--key", b.up.pki.clientKey, "--cert", b.up.pki.clientCert}
}

// throughPlugin starts a proxy as a client does that knows proxyConfig: it
// executes the plugin with a lock and speaks HTTP/2 over the socket in the answer.
func (b *bench) throughPlugin(ctx context.Context, name string, args []string) (*target, error) {
	home, err := b.newHome()
	if err != nil {
		return nil, err
	}
	s, err := b.start(ctx, home, args)
	if err != nil {
		return nil, err
	}
	t := &target{name: name, stop: func() { s.end(context.WithoutCancel(ctx)) }}
	if t.dial, err = s.dial(b.up.url); err == nil {
		var pid int
		pid, err = home.daemon(ctx)
		t.pids = []int{pid}
	}
	if err != nil {
		t.stop()
		return nil, err
	}
	return t, nil
}

// Credentials that are nobody's.
const (
	accessKey = "AKIDEXAMPLE"
	secretKey = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
)

// sessionToken is 900 bytes, as STS gives.
func sessionToken() string { return strings.Repeat("t0ken", 180) }

// home is a user's directories, so that no proxy of this machine's user is
// touched or counted.
type home struct {
	execproxy string
	dir       string
	env       []string
}

func (b *bench) newHome() (*home, error) {
	b.n++
	dir := filepath.Join(b.dir, fmt.Sprint(b.n))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir,
		"XDG_RUNTIME_DIR=" + dir, "XDG_STATE_HOME=" + filepath.Join(dir, "state"),
		"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "AWS_SESSION_TOKEN=" + sessionToken(),
		"AWS_EC2_METADATA_DISABLED=true",
	}
	return &home{b.execproxy, dir, env}, nil
}

// daemon returns the process id of the one proxy that runs in h.
func (h *home) daemon(ctx context.Context) (int, error) {
	cmd := exec.CommandContext(ctx, h.execproxy, "status", "-o", "json")
	cmd.Env = h.env
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("execproxy status: %w%s", err, stderrOf(err))
	}
	var status struct{ Proxies []struct{ PID int } }
	if err := json.Unmarshal(out, &status); err != nil {
		return 0, fmt.Errorf("execproxy status -o json: %w", err)
	}
	if len(status.Proxies) != 1 || status.Proxies[0].PID <= 0 {
		return 0, fmt.Errorf("execproxy status: %d proxies, not one: %s", len(status.Proxies), out)
	}
	return status.Proxies[0].PID, nil
}

// session is a client's: its lock, and what the plugin answered.
type session struct {
	home   *home
	lock   *lockfile.Lock
	answer *clientauthentication.ExecCredential
}

// start takes a lock and executes the plugin.
func (b *bench) start(ctx context.Context, h *home, args []string) (*session, error) {
	lock, err := lockfile.Create(filepath.Join(h.dir, "lock"))
	if err != nil {
		return nil, err
	}
	s := &session{home: h, lock: lock}
	cmd, err := b.pluginCommand(ctx, s, args)
	if err != nil {
		s.end(ctx)
		return nil, err
	}
	out, err := cmd.Output()
	if err != nil {
		s.end(ctx)
		return nil, fmt.Errorf("the plugin: %w%s", err, stderrOf(err))
	}
	if s.answer, err = clientauthentication.DecodeAnswer(bytes.NewReader(out)); err != nil {
		s.end(ctx)
		return nil, fmt.Errorf("the plugin's answer: %w", err)
	}
	if s.answer.Status == nil || s.answer.Status.ProxyConfig == nil {
		s.end(ctx)
		return nil, fmt.Errorf("the plugin's answer has no proxyConfig")
	}
	return s, nil
}

// pluginCommand is the plugin as a client executes it.
func (b *bench) pluginCommand(ctx context.Context, s *session, args []string) (*exec.Cmd, error) {
	ca, err := os.ReadFile(b.up.pki.ca)
	if err != nil {
		return nil, err
	}
	info, err := json.Marshal(map[string]any{
		"apiVersion": clientauthentication.V1, "kind": clientauthentication.Kind,
		"spec": map[string]any{
			"interactive":  false,
			"lockFilePath": s.lock.Path(),
			"cluster":      map[string]any{"server": b.up.url, "certificate-authority-data": ca},
		},
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, s.home.execproxy, args...)
	cmd.Env = append(s.home.env[:len(s.home.env):len(s.home.env)], clientauthentication.InfoVariable+"="+string(info))
	return cmd, nil
}

// dial returns how to speak HTTP/2 to the proxy of s.
func (s *session) dial(server string) (func(context.Context) (client, error), error) {
	status := s.answer.Status
	socket, err := status.ProxyConfig.SocketPath()
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(status.ProxyConfig.CertificateAuthorityData) {
		return nil, fmt.Errorf("no certificate in certificate-authority-data")
	}
	pair, err := tls.X509KeyPair([]byte(status.ClientCertificateData), []byte(status.ClientKeyData))
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	return dialH2("unix", socket, u.Host, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: u.Hostname()}), nil
}

// end lets go of the lock, which ends the proxy, and waits until it is gone.
func (s *session) end(ctx context.Context) {
	_ = s.lock.Unlock()
	s.home.stopAll(ctx)
}

func (h *home) stopAll(ctx context.Context) {
	cmd := exec.CommandContext(ctx, h.execproxy, "stop", "--all")
	cmd.Env = h.env
	_ = cmd.Run()
}

func stderrOf(err error) string {
	if e, ok := err.(*exec.ExitError); ok && len(e.Stderr) > 0 {
		return ": " + strings.TrimSpace(string(e.Stderr))
	}
	return ""
}
