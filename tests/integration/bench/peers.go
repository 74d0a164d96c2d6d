package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// nginxConf: TLS and HTTP/2 over a Unix socket in, HTTP/1.1 out, which is all
// that it has; it holds back neither a watch's events nor a body.
const nginxConf = `daemon off;
pid %[1]s/nginx.pid;
error_log stderr warn;
worker_processes auto;
worker_rlimit_nofile 20000;
events { worker_connections 8000; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	upstream api {
		server %[2]s;
		keepalive 256;
		keepalive_requests 100000000;
	}
	server {
		listen unix:%[3]s ssl http2;
		ssl_protocols TLSv1.3;
		ssl_certificate %[4]s;
		ssl_certificate_key %[5]s;
		ssl_client_certificate %[6]s;
		ssl_verify_client on;
		ssl_session_tickets off;
		keepalive_requests 100000000;
		client_max_body_size 0;
		http2_max_concurrent_streams 1000;
		location / {
			proxy_pass https://api;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_set_header Host $http_host;
			proxy_ssl_protocols TLSv1.3;
			proxy_ssl_certificate %[7]s;
			proxy_ssl_certificate_key %[8]s;
			proxy_ssl_trusted_certificate %[6]s;
			proxy_ssl_verify on;
			proxy_ssl_name api.bench;
			proxy_request_buffering off;
			proxy_buffering off;
			%[9]s
			proxy_read_timeout 1h;
		}
	}
}
`

func (b *bench) nginx(ctx context.Context) (*target, error) { return b.nginxWith(ctx, "") }

// largeNginx is what nginx can do with large payloads when it is told to.
func (b *bench) largeNginx(ctx context.Context) (*target, error) {
	return b.nginxWith(ctx, "proxy_buffers 8 64k; proxy_buffer_size 64k;")
}

func (b *bench) nginxWith(ctx context.Context, more string) (*target, error) {
	program, err := installed("nginx", "nginx-light")
	if err != nil {
		return nil, err
	}
	dir, socket, err := b.peerDir()
	if err != nil {
		return nil, err
	}
	p := b.up.pki
	file := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(nginxConf, dir, b.server(), socket, p.cert, p.key, p.ca, p.clientCert, p.clientKey, more)
	if os.Getuid() == 0 {
		text = "user root;\n" + text // or its workers could not read the keys
	}
	if err := writeFile(file, text); err != nil {
		return nil, err
	}
	args := []string{"-p", dir, "-c", file}
	if err := verify(ctx, program, append(args, "-t")...); err != nil {
		return nil, err
	}
	return b.peer(ctx, socket, exec.Command(program, args...))
}

// haproxyConf: TLS and HTTP/2 on both sides.
const haproxyConf = `global
	maxconn 4000
	ssl-default-bind-options ssl-min-ver TLSv1.3
	ssl-default-server-options ssl-min-ver TLSv1.3
	tune.h2.max-concurrent-streams 1000
	no log
defaults
	mode http
	timeout connect 5s
	timeout client 1h
	timeout server 1h
	http-reuse always
frontend in
	bind unix@%[1]s ssl crt %[2]s alpn h2,http/1.1 ca-file %[3]s verify required no-tls-tickets
	default_backend api
backend api
	server api %[4]s ssl crt %[5]s ca-file %[3]s verify required alpn h2
`

func (b *bench) haproxy(ctx context.Context) (*target, error) {
	program, err := installed("haproxy", "haproxy")
	if err != nil {
		return nil, err
	}
	dir, socket, err := b.peerDir()
	if err != nil {
		return nil, err
	}
	p := b.up.pki
	in, out := filepath.Join(dir, "in.pem"), filepath.Join(dir, "out.pem")
	if err := errors.Join(join(in, p.cert, p.key), join(out, p.clientCert, p.clientKey)); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := writeFile(file, fmt.Sprintf(haproxyConf, socket, in, p.ca, b.server(), out)); err != nil {
		return nil, err
	}
	if err := verify(ctx, program, "-c", "-q", "-f", file); err != nil {
		return nil, err
	}
	return b.peer(ctx, socket, exec.Command(program, "-db", "-q", "-f", file))
}

// peer starts a proxy that speaks HTTP/2 at a Unix socket and knows the client
// that the API server knows.
func (b *bench) peer(ctx context.Context, socket string, cmd *exec.Cmd) (*target, error) {
	stop, gone, err := launch(cmd)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := listens(ctx, socket, gone); err != nil {
		stop()
		return nil, err
	}
	config, err := b.identity()
	if err != nil {
		stop()
		return nil, err
	}
	return &target{dial: dialH2("unix", socket, b.server(), config), pids: family(cmd.Process.Pid), forks: true, stop: stop}, nil
}

// sigv4Proxy is awslabs' aws-sigv4-proxy. Its clients speak plain HTTP/1.1 over
// TCP.
func (b *bench) sigv4Proxy(ctx context.Context) (*target, error) {
	program, err := exec.LookPath(b.awsProxy)
	if err != nil {
		return nil, fmt.Errorf("aws-sigv4-proxy %w: its Go module cannot be required by version; build it from github.com/awslabs/aws-sigv4-proxy and name it with -aws-sigv4-proxy", errMissing)
	}
	h, err := b.newHome()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	_ = l.Close() // it takes no socket, and tells no port
	cmd := exec.Command(program, "--port", address, "--name", "eks", "--region", "eu-central-1", "--host", b.server(), "--upstream-url-scheme", "https")
	cmd.Env = append(h.env, "SSL_CERT_FILE="+b.up.pki.ca)
	stop, gone, err := launch(cmd)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case why := <-gone:
			return nil, fmt.Errorf("it ended: %w", why)
		default:
		}
		if time.Now().After(end) || ctx.Err() != nil {
			stop()
			return nil, err
		}
	}
	return &target{dial: dialH1("tcp", address, address), h1: true, pids: []int{cmd.Process.Pid}, stop: stop}, nil
}

// kubectlProxy is `kubectl proxy --unix-socket`, with the same certificate
// upstream. Its clients speak plain HTTP/1.1: it has nothing else.
func (b *bench) kubectlProxy(context.Context) (*target, error) {
	h, err := b.newHome()
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(h.dir, "kubeconfig")
	if err := writeFile(kubeconfig, b.kubeconfig(b.up.url)); err != nil {
		return nil, err
	}
	socket := filepath.Join(h.dir, "kubectl.sock")
	cmd := exec.Command(b.kubectl, "proxy", "--kubeconfig", kubeconfig, "--unix-socket", socket)
	cmd.Env = h.env
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	// "Starting to serve on …" comes when it listens.
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		stop()
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return &target{dial: dialH1("unix", socket, "localhost"), h1: true, pids: []int{cmd.Process.Pid}, stop: stop}, nil
}

// kubeconfig is that of a client with the certificate.
func (b *bench) kubeconfig(server string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: bench
clusters: [{name: bench, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: bench, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
`, server, b.up.pki.ca, b.up.pki.clientCert, b.up.pki.clientKey)
}

// peerDir is a directory for a proxy's files and its socket.
func (b *bench) peerDir() (dir, socket string, err error) {
	b.n++
	dir = filepath.Join(b.dir, fmt.Sprint(b.n))
	return dir, filepath.Join(dir, "in.sock"), os.Mkdir(dir, 0o700)
}

// installed finds a program of a Debian package; daemons are not on every
// user's PATH.
func installed(program, pkg string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	path := "/usr/sbin/" + program
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s %w: apt-get install %s", program, errMissing, pkg)
	}
	return path, nil
}

// verify lets a program read its configuration.
func verify(ctx context.Context, program string, args ...string) error {
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("its configuration: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// launch starts a program; stop ends it. gone tells when it ends by itself, and
// what it said.
func launch(cmd *exec.Cmd) (stop func(), gone <-chan error, err error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = endsWithUs
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ended, told := make(chan struct{}), make(chan error, 1)
	go func() {
		err := cmd.Wait()
		told <- fmt.Errorf("%v: %s", err, bytes.TrimSpace(stderr.Bytes()))
		close(ended)
	}()
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}, told, nil
}

// join writes files one after the other into another.
func join(to string, from ...string) error {
	var all []byte
	for _, name := range from {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		all = append(all, data...)
	}
	return os.WriteFile(to, all, 0o600)
}
