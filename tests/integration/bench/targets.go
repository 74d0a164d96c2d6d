package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/execproxy/execproxy/lockfile"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// bench is one run.
type bench struct {
	options
	dir string
	up  *upstream
	log *slog.Logger
	out io.Writer
	n   int // directories made

	goals []goal
}

// target is one way to the API server.
type target struct {
	name   string
	base   string // https://127.0.0.1:41001
	pid    int    // of the proxy; 0: there is none
	client *http.Client
	stop   func()
}

// Names of the targets, as tables have them.
const (
	nameDirect  = "direct"
	nameMTLS    = "execproxy mTLS"
	nameSigV4   = "execproxy SigV4"
	nameKubectl = "kubectl proxy"
)

// direct is Go's own client with the certificate, and no proxy.
func (b *bench) direct(context.Context) (*target, error) {
	config, err := b.identity()
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true}
	return &target{name: nameDirect, base: b.up.url, client: &http.Client{Transport: tr}, stop: tr.CloseIdleConnections}, nil
}

func (b *bench) identity() (*tls.Config, error) {
	pool, err := readPool(b.up.pki.ca)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(b.up.pki.clientCert, b.up.pki.clientKey)
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, nil
}

func (b *bench) mtls(ctx context.Context) (*target, error) {
	return b.throughPlugin(ctx, nameMTLS, b.mtlsArgs())
}

func (b *bench) sigv4(ctx context.Context) (*target, error) {
	return b.throughPlugin(ctx, nameSigV4, []string{"exec", "--auth", "sigv4", "--aws-region", "eu-central-1"})
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
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	tr, err := s.transport(b.up.url)
	if err != nil {
		s.end(ctx)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	pid, err := home.daemon(ctx)
	if err != nil {
		s.end(ctx)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &target{name: name, base: b.up.url, pid: pid, client: &http.Client{Transport: tr}, stop: func() {
		tr.CloseIdleConnections()
		s.end(context.WithoutCancel(ctx))
	}}, nil
}

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
		"AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
		"AWS_SESSION_TOKEN=" + strings.Repeat("t0ken", 180), // 900 bytes, as STS gives
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

// transport speaks HTTP/2 to the proxy of s.
func (s *session) transport(server string) (*http.Transport, error) {
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
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		TLSClientConfig:    &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: u.Hostname(), MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:  true,
		DisableCompression: true,
	}, nil
}

// end lets go of the lock, which ends the proxy, and waits until it is gone.
func (s *session) end(ctx context.Context) {
	_ = s.lock.Unlock()
	cmd := exec.CommandContext(ctx, s.home.execproxy, "stop", "--all")
	cmd.Env = s.home.env
	_ = cmd.Run()
}

// kubectlProxy is `kubectl proxy --unix-socket`, with the same certificate
// upstream. Its clients speak plain HTTP/1.1: it has nothing else.
func (b *bench) kubectlProxy(ctx context.Context) (*target, error) {
	h, err := b.newHome()
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(h.dir, "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: bench
clusters: [{name: bench, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: bench, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
`, b.up.url, b.up.pki.ca, b.up.pki.clientCert, b.up.pki.clientKey)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		return nil, err
	}
	socket := filepath.Join(h.dir, "kubectl.sock")
	cmd := exec.CommandContext(ctx, b.kubectl, "proxy", "--kubeconfig", kubeconfig, "--unix-socket", socket)
	cmd.Env = h.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", nameKubectl, err)
	}
	stop := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	// "Starting to serve on …" comes when it listens.
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		stop()
		return nil, fmt.Errorf("%s: %w: %s", nameKubectl, err, bytes.TrimSpace(stderr.Bytes()))
	}
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: 64,
		DisableCompression:  true,
	}
	return &target{name: nameKubectl, base: "http://localhost", pid: cmd.Process.Pid, client: &http.Client{Transport: tr}, stop: func() {
		tr.CloseIdleConnections()
		stop()
	}}, nil
}

func stderrOf(err error) string {
	if e, ok := err.(*exec.ExitError); ok && len(e.Stderr) > 0 {
		return ": " + strings.TrimSpace(string(e.Stderr))
	}
	return ""
}
