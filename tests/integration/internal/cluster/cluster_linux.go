// Package cluster runs a real Kubernetes API on loopback: etcd, one or more
// kube-apiservers and, where asked for, kube-controller-manager.
package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// Name is a host name of the API servers that is in their certificate but in
// no DNS: only a proxy that resolves it itself gets there.
const Name = "kubernetes.execproxy.test"

const startDeadline = 90 * time.Second

// Cluster is the shared part: keys, etcd and the first kube-apiserver.
type Cluster struct {
	Dir        string // keys, logs and data
	Bin        map[string]string
	CA         *pki.CA // of servers and users
	FrontProxy *pki.CA // of whoever may assert X-Remote-User
	API        *APIServer

	etcdURL string

	mu    sync.Mutex // tests start programs beside each other
	procs []*proc.Process
}

// APIServer is one kube-apiserver.
type APIServer struct {
	URL   string // https://127.0.0.1:PORT
	Port  int
	Audit string // file with a JSON line per request

	c     *Cluster
	name  string
	extra []string
	proc  *proc.Process
}

// Start brings up etcd and one kube-apiserver in dir.
func Start(ctx context.Context, dir string) (*Cluster, error) {
	bin, err := kubebin.Find()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, Bin: bin}
	if err := c.keys(); err != nil {
		return nil, fmt.Errorf("making the cluster's keys: %w", err)
	}
	if err := c.etcd(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	if c.API, err = c.StartAPIServer(ctx, "kube-apiserver"); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// Stop kills everything, the last started first.
func (c *Cluster) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.procs) - 1; i >= 0; i-- {
		c.procs[i].Kill()
	}
}

// start starts a program that Stop ends.
func (c *Cluster) start(name string, args ...string) (*proc.Process, error) {
	p, err := proc.Start(name, c.path(name+".log"), args...)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.procs = append(c.procs, p)
	return p, nil
}

// Logs writes the end of each program's log.
func (c *Cluster) Logs(w io.Writer, lines int) {
	logs, _ := filepath.Glob(filepath.Join(c.Dir, "*.log"))
	for _, log := range logs {
		_, _ = fmt.Fprintf(w, "--- the end of %s\n%s\n", log, proc.Tail(log, lines))
	}
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

func (c *Cluster) keys() (err error) {
	if c.CA, err = pki.NewCA("execproxy-test-ca"); err != nil {
		return err
	}
	if c.FrontProxy, err = pki.NewCA("execproxy-test-front-proxy"); err != nil {
		return err
	}
	for name, ca := range map[string]*pki.CA{"ca.crt": c.CA, "front-proxy-ca.crt": c.FrontProxy} {
		if err := pki.WriteFile(c.path(name), ca.PEM); err != nil {
			return err
		}
	}
	for name, o := range map[string]pki.Options{
		"apiserver":       {CommonName: "kube-apiserver", Hosts: []string{"localhost", "kubernetes", "kubernetes.default.svc", Name, "127.0.0.1", "::1", "10.96.0.1"}},
		"kubelet-client":  {CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}},
		"admin":           {CommonName: "admin", Organizations: []string{"system:masters"}},
		"controllers":     {CommonName: "system:kube-controller-manager"},
		"controllers-tls": {CommonName: "localhost", Hosts: []string{"localhost", "127.0.0.1"}},
	} {
		pair, err := c.CA.Issue(o)
		if err != nil {
			return err
		}
		if _, _, err := pair.Write(c.Dir, name); err != nil {
			return err
		}
	}
	pair, err := c.FrontProxy.Issue(pki.Options{CommonName: "front-proxy-client"})
	if err != nil {
		return err
	}
	if _, _, err := pair.Write(c.Dir, "front-proxy"); err != nil {
		return err
	}
	if err := pki.WriteFile(c.path("audit-policy.yaml"),
		[]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n")); err != nil {
		return err
	}
	return pki.WriteServiceAccountKey(c.Dir)
}

func (c *Cluster) etcd(ctx context.Context) error {
	client, err := FreePort(os.Getpid())
	if err != nil {
		return err
	}
	peer, err := FreePort(0)
	if err != nil {
		return err
	}
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", client)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", peer)
	p, err := c.start("etcd", c.Bin["etcd"],
		"--name=test", "--data-dir="+c.path("etcd"), "--log-level=warn", "--unsafe-no-fsync",
		"--listen-client-urls="+c.etcdURL, "--advertise-client-urls="+c.etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=test="+peerURL)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	return p.Await(ctx, func(ctx context.Context) error { return ok(ctx, http.DefaultClient, c.etcdURL+"/health") })
}

// StartAPIServer starts a kube-apiserver on a free port, over the same etcd as
// the others, and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context, name string, extra ...string) (*APIServer, error) {
	port, err := FreePort(0)
	if err != nil {
		return nil, err
	}
	s := &APIServer{
		URL: fmt.Sprintf("https://127.0.0.1:%d", port), Port: port, Audit: c.path(name + "-audit.json"),
		c: c, name: name, extra: extra,
	}
	return s, s.Start(ctx)
}

// Start starts the server again, at the same port, after Kill.
func (s *APIServer) Start(ctx context.Context) error {
	c := s.c
	args := []string{
		c.Bin["kube-apiserver"],
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.Port),
		// 127.0.0.1 is no legal address in Endpoints.
		"--endpoint-reconciler-type=none", "--enable-aggregator-routing=true",
		"--etcd-servers=" + c.etcdURL,
		"--tls-cert-file=" + c.path("apiserver.crt"), "--tls-private-key-file=" + c.path("apiserver.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--requestheader-client-ca-file=" + c.path("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.path("front-proxy.crt"), "--proxy-client-key-file=" + c.path("front-proxy.key"),
		"--kubelet-client-certificate=" + c.path("kubelet-client.crt"), "--kubelet-client-key=" + c.path("kubelet-client.key"),
		"--kubelet-certificate-authority=" + c.path("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("sa.pub"), "--service-account-signing-key-file=" + c.path("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
		"--authorization-mode=Node,RBAC", "--disable-admission-plugins=ServiceAccount",
		"--audit-policy-file=" + c.path("audit-policy.yaml"), "--audit-log-path=" + s.Audit,
		"--audit-log-maxsize=200", "--audit-log-maxbackup=1",
		"--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false",
	}
	p, err := c.start(s.name, append(args, s.extra...)...)
	if err != nil {
		return err
	}
	s.proc = p
	return c.await(ctx, p, s.URL+"/readyz")
}

// await waits until a program of the cluster answers an administrator at url.
func (c *Cluster) await(ctx context.Context, p *proc.Process, url string) error {
	client, err := c.AdminClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	return p.Await(ctx, func(ctx context.Context) error { return ok(ctx, client, url) })
}

// Kill ends the server as a power failure would.
func (s *APIServer) Kill() { s.proc.Kill() }

// AdminClient returns an HTTP client with the rights of a cluster's
// administrator, straight to the API server.
func (c *Cluster) AdminClient() (*http.Client, error) {
	cert, err := tls.LoadX509KeyPair(c.path("admin.crt"), c.path("admin.key"))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: c.CA.Pool(), Certificates: []tls.Certificate{cert}},
		ForceAttemptHTTP2: true,
	}}, nil
}

func ok(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return nil
}
