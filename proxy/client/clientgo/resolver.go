package clientgo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/execproxy/execproxy/proxy/client"
)

// ErrClosed says that the Resolver, or this Resolved, was closed.
var ErrClosed = client.ErrClosed

// Options are what a Resolver may be given. The zero value is ready.
type Options struct {
	// Metrics counts; nil: nobody does.
	Metrics Metrics
	// Stderr gets what plugins write there; nil: nothing does.
	Stderr io.Writer
	// Logger gets what happens to plugins, proxies and streams; nil: nothing is logged.
	Logger *slog.Logger
	// Timeout is how long a plugin may take for its document; 0: 30 s.
	Timeout time.Duration
}

// A Resolver turns rest.Configs with an exec plugin into ones that lead through the proxy
// which the plugin starts. Its methods may be called from several goroutines.
type Resolver struct {
	o   Options
	log *slog.Logger

	mu      sync.Mutex
	closed  bool
	entries map[string]*entry
}

// New makes a Resolver. The caller must call [Resolver.Close].
func New(o Options) *Resolver {
	r := &Resolver{o: o, log: o.Logger, entries: map[string]*entry{}}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.o.Stderr != nil {
		r.o.Stderr = &sharedWriter{w: r.o.Stderr}
	}
	if r.o.Metrics == nil {
		r.o.Metrics = noMetrics{}
	}
	return r
}

// A sharedWriter is for the plugins of several clusters at once.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// Resolve executes the plugin of config, unless that has been done, and returns once there
// is a proxy. config is not changed. Configurations with the same plugin, arguments,
// environment and cluster share one proxy and one transport, whatever else is in them.
func (r *Resolver) Resolve(ctx context.Context, config *rest.Config) (*Resolved, error) {
	p, err := pluginOf(config)
	if err != nil {
		return nil, err
	}
	e, err := r.acquire(p)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", p.server, err)
	}
	res, err := e.resolved(ctx, config)
	if err != nil {
		if err := r.release(e); err != nil {
			r.log.Warn("after a resolution that failed", "server", p.server, "err", err)
		}
		return nil, fmt.Errorf("resolving %s: %w", p.server, err)
	}
	return res, nil
}

// Close ends all proxies and streams. Configurations that were resolved are of no use then.
func (r *Resolver) Close() error {
	r.mu.Lock()
	entries := r.entries
	r.entries, r.closed = nil, true
	r.mu.Unlock()
	var errs []error
	for _, e := range entries {
		errs = append(errs, e.close())
	}
	return errors.Join(errs...)
}

func (r *Resolver) acquire(p *plugin) (*entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	if e := r.entries[p.key]; e != nil {
		e.users++
		return e, nil
	}
	o := p.options
	o.Stderr, o.Logger, o.Timeout = r.o.Stderr, r.o.Logger, r.o.Timeout
	o.Executed = func(err error) { executed(r.o.Metrics, err) }
	c, err := client.New(o)
	if err != nil {
		return nil, err
	}
	e := &entry{r: r, plugin: p, client: c, users: 1}
	e.transport = &transport{e: e, base: c.RoundTripper()}
	r.entries[p.key] = e
	return e, nil
}

func (r *Resolver) release(e *entry) error {
	r.mu.Lock()
	e.users--
	last := e.users == 0 && r.entries[e.plugin.key] == e
	if last {
		delete(r.entries, e.plugin.key)
	}
	r.mu.Unlock()
	if !last {
		return nil
	}
	return e.close()
}

// An entry is what all configurations with the same plugin and cluster share.
type entry struct {
	r         *Resolver
	plugin    *plugin
	client    *client.Client
	transport *transport
	users     int // r.mu

	mu     sync.Mutex
	closed bool
	bridge *bridge // nil until it is needed
}

func (e *entry) close() error {
	e.mu.Lock()
	e.closed = true
	b := e.bridge
	e.mu.Unlock()
	// First, as it cuts the streams that the bridge waits for.
	err := e.client.Close()
	if b != nil {
		err = errors.Join(err, b.close())
	}
	return err
}

func (e *entry) resolved(ctx context.Context, config *rest.Config) (*Resolved, error) {
	if err := e.client.Start(ctx); err != nil {
		return nil, e.plugin.explain(err)
	}
	// CopyConfig writes to an ExecProvider, which would be the caller's.
	own := *config
	own.ExecProvider = nil
	c := rest.CopyConfig(&own)
	c.Host = e.plugin.host(config)
	c.TLSClientConfig = rest.TLSClientConfig{}
	c.Transport = e.transport
	c.Proxy = noStreams
	hc, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, err
	}
	return &Resolved{Config: c, HTTPClient: hc, e: e}, nil
}

// A Resolved is the way to one cluster.
type Resolved struct {
	// Config sends requests through the proxy. It is not for exec, attach and
	// port-forward, which fail with an error that names [Resolved.StreamConfig].
	Config *rest.Config
	// HTTPClient is rest.HTTPClientFor(Config), for NewForConfigAndClient and
	// controller-runtime's Options.HTTPClient.
	HTTPClient *http.Client

	e    *entry
	once sync.Once
}

// StreamConfig is for remotecommand's executors and portforward's dialers, SPDY and
// WebSocket; see the package's comment. It is a secret, like any rest.Config, and holds until
// the Resolver or the cluster's last Resolved is closed, over restarts of the proxy too. The
// result is the caller's own.
func (r *Resolved) StreamConfig() (*rest.Config, error) {
	b, err := r.e.stream()
	if err != nil {
		return nil, fmt.Errorf("streams to %s: %w", r.e.plugin.server, err)
	}
	c := rest.CopyConfig(r.Config)
	c.Transport = nil
	c.Proxy = b.proxy
	c.TLSClientConfig = rest.TLSClientConfig{CAData: b.ca, CertData: b.pair.CertificatePEM, KeyData: b.pair.KeyPEM}
	return c, nil
}

// Close says that the caller has no use for it any more. When all have said so for a
// cluster, its proxy ends.
func (r *Resolved) Close() error {
	var err error
	r.once.Do(func() { err = r.e.r.release(r.e) })
	return err
}

func (e *entry) stream() (*bridge, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	if e.bridge == nil {
		b, err := newBridge(e)
		if err != nil {
			return nil, err
		}
		e.bridge = b
	}
	return e.bridge, nil
}

// noStreams is Config's Proxy. Nothing asks for it while there is a Transport but a dialer
// of streams, which would go past the proxy, to the cluster itself.
func noStreams(*http.Request) (*url.URL, error) {
	return nil, errors.New("this rest.Config sends requests only; for exec, attach and port-forward use Resolved.StreamConfig")
}
