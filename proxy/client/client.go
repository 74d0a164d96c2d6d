// Package client is the client side of the exec-proxy protocol (KEP-2718), for Go
// programs: it takes a lock, executes the plugin, reads one document from it without
// waiting for it to end, and sends HTTPS requests over the Unix socket that the
// document names.
//
//	c, err := client.New(client.Options{Command: "execproxy", Args: []string{"exec"}, Cluster: cluster})
//	…
//	defer c.Close()
//	hc := &http.Client{Transport: c.RoundTripper()}
//
// The proxy lives for as long as the lock is held: until [Client.Close], or until this
// process ends in whatever way. Requests keep the cluster's own URL and Host. The
// proxy's certificate is verified for the server's name, against the CA that came with
// the document and nothing else, and the client pair that came with it is presented.
//
// The plugin is executed when the first connection is made, and again when
//
//   - the socket is gone or refuses, or what answers on it is not the proxy that the
//     document was about: once for all connections that are waiting, and after a
//     failure not before a while has passed, up to half a minute;
//   - a new connection is made and the document has expired, or soon will. While the
//     plugin itself is the proxy and runs on, only the certificate's own end counts.
//
// Connections that are open are not touched by that. One gets no new requests any more when
// its pair comes near its end.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/lockfile"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

var (
	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("client is closed")

	// ErrNoProxy says that the plugin answered with a credential for the API server
	// instead of a proxy: it does not speak the protocol, or was told not to.
	ErrNoProxy = errors.New("the plugin answered without proxyConfig: it does not speak the exec-proxy protocol, use it with a client that does not either")
)

// Options say which plugin to run and for which cluster.
type Options struct {
	// Command is the plugin: a path, or a name that is looked for as os/exec does.
	Command string
	Args    []string
	// Env is the plugin's whole environment; nil lets it inherit this process's, as
	// os/exec does. KUBERNETES_EXEC_INFO is added.
	Env []string
	// ExtraEnv is added to Env, or to what is inherited: a kubeconfig's exec.env.
	ExtraEnv []string
	// Dir is the plugin's working directory; empty: this process's.
	Dir string

	// Cluster is told to the plugin. Server must be an https URL, or empty when the
	// plugin knows its server otherwise; TLSServerName or else Server's host is the
	// name that the proxy must prove.
	Cluster clientauthentication.Cluster
	// OmitCluster keeps Cluster from the plugin, which knows its cluster otherwise: a
	// kubeconfig's provideClusterInfo: false.
	OmitCluster bool
	// APIVersion is clientauthentication.V1 (the default) or V1Beta1.
	APIVersion string

	// LockFile is the path of the lock file to make; empty: a file in a new
	// directory, readable by this user alone, below the system's temporary one.
	LockFile string

	// Stderr gets what the plugin writes there; nil: nothing does.
	Stderr io.Writer
	// Logger gets what happens to plugin and proxy; nil: nothing is logged.
	Logger *slog.Logger
	// Timeout is how long the plugin may take for its document; 0: 30 s.
	Timeout time.Duration

	// Executed is told of each execution of the plugin: nil, or why there is no document
	// that can be used (a [*PluginError]). It must not call the Client; nil: nobody is.
	Executed func(err error)
}

// A Client is a lock, the plugin that was executed under it, and the way to the proxy.
// Its methods may be called from several goroutines.
type Client struct {
	o     Options
	log   *slog.Logger
	host  string // host:port that requests may go to; empty: any
	name  string // that the proxy must prove; empty: the request's host
	lock  *lockfile.Lock
	dir   string        // to be removed; may be empty
	grace time.Duration // for a plugin to end after the lock was released
	trip  *roundTripper

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	once   sync.Once

	mu       sync.Mutex
	closed   bool
	current  *session
	flight   *flight
	fails    int // in a row: documents that were not to be had or not to be used
	retry    time.Time
	failure  error // the last one
	children map[*child]struct{}
	conns    map[*conn]struct{}
}

// New takes the lock. It does not execute the plugin; see [Client.Start]. The caller
// must call [Client.Close].
func New(o Options) (*Client, error) {
	c := &Client{
		o:        o,
		log:      o.Logger,
		grace:    5 * time.Second,
		children: map[*child]struct{}{},
		conns:    map[*conn]struct{}{},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.o.Timeout <= 0 {
		c.o.Timeout = 30 * time.Second
	}
	if c.o.APIVersion == "" {
		c.o.APIVersion = clientauthentication.V1
	}
	if o.Stderr != nil {
		c.o.Stderr = &sharedWriter{w: o.Stderr}
	}
	if o.Command == "" {
		return nil, errors.New("client options: Command is empty: name the plugin")
	}
	if o.Cluster.Server != "" {
		u, err := url.Parse(o.Cluster.Server)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" {
			return nil, errors.New("client options: Cluster.Server must be https://host[:port]")
		}
		c.host, c.name = hostPort(u), u.Hostname()
	}
	if o.Cluster.TLSServerName != "" {
		c.name = o.Cluster.TLSServerName
	}
	if _, err := c.info(""); err != nil {
		return nil, fmt.Errorf("client options: %w", err)
	}
	if c.o.LockFile == "" {
		sweep(os.TempDir(), time.Now())
		dir, err := os.MkdirTemp("", dirPrefix)
		if err != nil {
			return nil, fmt.Errorf("making a directory for the lock file: %w", err)
		}
		c.dir, c.o.LockFile = dir, filepath.Join(dir, lockName)
	}
	var err error
	if c.lock, err = lockfile.Create(c.o.LockFile); err != nil {
		return nil, errors.Join(err, c.removeDir())
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.trip = newRoundTripper(c)
	return c, nil
}

// Start executes the plugin now, if that has not been done, and returns once its
// document is there.
func (c *Client) Start(ctx context.Context) error {
	_, err := c.session(ctx)
	return err
}

// Credential returns the plugin's document, executing the plugin if there is none or
// it has expired. The result is the caller's own.
func (c *Client) Credential(ctx context.Context) (*clientauthentication.ExecCredential, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	cred, status, proxy := *s.cred, *s.cred.Status, *s.cred.Status.ProxyConfig
	proxy.CertificateAuthorityData = bytes.Clone(proxy.CertificateAuthorityData)
	status.ProxyConfig, cred.Status = &proxy, &status
	return &cred, nil
}

// TLSConfig returns how to speak TLS with the proxy: its CA, the name it must prove,
// the client pair, HTTP/2 and HTTP/1.1 by ALPN. It is of the document as it is now.
// The result is the caller's own.
func (c *Client) TLSConfig(ctx context.Context) (*tls.Config, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	return s.tls.Clone(), nil
}

// RoundTripper returns a transport for requests to the cluster's server: HTTP/2 over
// one connection, or HTTP/1.1 if the proxy does not speak it. It refuses requests to
// other hosts, where a redirect may lead to. All calls return the same one.
func (c *Client) RoundTripper() http.RoundTripper { return c.trip }

// Close cuts all connections that the client made, releases the lock, by which the
// proxy ends, and waits for a plugin that is the proxy itself to end. One that does
// not within five seconds is killed, and that is an error.
func (c *Client) Close() error {
	var err error
	c.once.Do(func() { err = c.close() })
	return err
}

func (c *Client) close() error {
	c.mu.Lock()
	c.closed = true
	running := c.flight
	c.cancel()
	c.mu.Unlock()
	if running != nil {
		<-running.done
	}
	c.trip.CloseIdleConnections()
	c.mu.Lock()
	var children []*child
	for child := range c.children {
		children = append(children, child)
	}
	var conns []*conn
	for conn := range c.conns {
		conns = append(conns, conn)
	}
	c.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
	errs := []error{c.lock.Unlock()}
	late := time.NewTimer(c.grace)
	defer late.Stop()
	for _, child := range children {
		select {
		case <-child.done:
		case <-late.C:
			late.Reset(0)
			child.kill()
			<-child.done
			errs = append(errs, fmt.Errorf("plugin %q ran on for %v after its lock was released and was killed", c.o.Command, c.grace))
		}
	}
	c.tasks.Wait()
	return errors.Join(append(errs, c.removeDir())...)
}

func (c *Client) removeDir() error {
	if c.dir == "" {
		return nil
	}
	return os.RemoveAll(c.dir)
}

// info is what the plugin is told.
func (c *Client) info(lock string) ([]byte, error) {
	cred := &clientauthentication.ExecCredential{APIVersion: c.o.APIVersion}
	cred.Spec.LockFilePath = lock
	if c.o.Cluster.Server != "" && !c.o.OmitCluster {
		cred.Spec.Cluster = &c.o.Cluster
	}
	return cred.EncodeInfo()
}

// hostPort is where u leads to, in one spelling.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// newSession checks what the plugin answered and makes a session of it.
func (c *Client) newSession(cred *clientauthentication.ExecCredential, plugin *child, before *session) (*session, error) {
	if cred.APIVersion != c.o.APIVersion {
		return nil, fmt.Errorf("the plugin was asked in %s and answered in %s", c.o.APIVersion, cred.APIVersion)
	}
	status := cred.Status
	if status.ProxyConfig == nil {
		return nil, ErrNoProxy
	}
	path, err := status.ProxyConfig.SocketPath()
	if err != nil {
		return nil, fmt.Errorf("the plugin's answer: %w", err)
	}
	s := &session{cred: cred, path: path, plugin: plugin, expires: status.ExpirationTimestamp}
	if before != nil && before.same(s) {
		// With its cache of TLS sessions.
		s.tls, s.notAfter = before.tls, before.notAfter
		return s, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(status.ProxyConfig.CertificateAuthorityData) {
		return nil, errors.New("the plugin's answer: proxyConfig.certificate-authority-data holds no PEM certificate")
	}
	s.tls = &tls.Config{
		RootCAs:            roots,
		ServerName:         c.name,
		NextProtos:         []string{"h2", "http/1.1"},
		MinVersion:         tls.VersionTLS12,
		ClientSessionCache: tls.NewLRUClientSessionCache(4),
	}
	if status.ClientCertificateData != "" {
		pair, err := tls.X509KeyPair([]byte(status.ClientCertificateData), []byte(status.ClientKeyData))
		if err != nil {
			return nil, fmt.Errorf("the plugin's answer: clientCertificateData and clientKeyData: %w", err)
		}
		s.tls.Certificates = []tls.Certificate{pair}
		if pair.Leaf != nil {
			s.notAfter = pair.Leaf.NotAfter
		}
	}
	return s, nil
}
