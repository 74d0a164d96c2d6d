package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// bench is one run.
type bench struct {
	options
	up  *upstream
	log *slog.Logger
	out io.Writer
	n   int // directories made

	missing []string // what is not compared, and why
	results results
}

// target is one way to the API server.
type target struct {
	name  string
	pids  []int // of the proxy; none: there is no proxy
	forks bool  // pids are a master's and its workers', who may come later
	dial  func(context.Context) (client, error)
	h1    bool // speaks HTTP/1.1 only: one request in flight on a connection
	stop  func()
}

// client is a connection to a target.
type client interface {
	// drive keeps n requests in flight until the end, at least one each, and
	// adds how long each took to took, in ns.
	drive(q *request, n int, end time.Time, took []int64) ([]int64, error)
	close()
}

const (
	userAgent = "kubectl/v1.36.3 (linux/amd64) kubernetes/0000000"
	// patience is how long an answer may take before the run fails.
	patience = 30 * time.Second
)

// Names of the targets, as tables have them.
const (
	nameDirect    = "direct"
	nameMTLS      = "execproxy mTLS"
	nameSigV4     = "execproxy SigV4"
	nameNginx     = "nginx"
	nameLarge     = "nginx, buffers of 64 KiB"
	nameHAProxy   = "haproxy"
	nameReference = "net/http + SDK SigV4"
	nameSigV4Pxy  = "aws-sigv4-proxy"
	nameKubectl   = "kubectl proxy"
)

// errMissing is a proxy that is not installed.
var errMissing = errors.New("not installed")

// starter starts one target. What is not installed is errMissing.
type starter struct {
	name  string
	start func(context.Context) (*target, error)
}

func (b *bench) starters() []starter {
	return []starter{
		{nameDirect, b.direct}, {nameMTLS, b.mtls}, {nameSigV4, b.sigv4},
		{nameNginx, b.nginx}, {nameLarge, b.largeNginx}, {nameHAProxy, b.haproxy},
		{nameReference, b.reference}, {nameSigV4Pxy, b.sigv4Proxy}, {nameKubectl, b.kubectlProxy},
	}
}

// start starts those of the names that are installed and wanted, afresh.
func (b *bench) targets(ctx context.Context, names ...string) (all []*target, stop func(), err error) {
	stop = func() {
		for _, t := range all {
			t.stop()
		}
	}
	for _, s := range b.starters() {
		if len(names) > 0 && !slices.Contains(names, s.name) || !b.wanted.MatchString(s.name) {
			continue
		}
		t, err := s.start(ctx)
		if errors.Is(err, errMissing) {
			b.missed(err)
			continue
		}
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("starting %s: %w", s.name, err)
		}
		t.name = s.name
		all = append(all, t)
		b.log.Debug("started", "target", t.name, "pids", t.pids)
	}
	return all, stop, nil
}

func (b *bench) missed(err error) {
	if why := err.Error(); !slices.Contains(b.missing, why) {
		b.missing = append(b.missing, why)
		b.log.Warn(why)
	}
}

// dialH2 returns how to make an HTTP/2 connection over TLS.
func dialH2(network, address, authority string, config *tls.Config) func(context.Context) (client, error) {
	config.NextProtos, config.MinVersion = []string{"h2"}, tls.VersionTLS12
	return func(ctx context.Context) (client, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := tls.Client(conn, config)
		if err := c.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		if p := c.ConnectionState().NegotiatedProtocol; p != "h2" {
			_ = conn.Close()
			return nil, fmt.Errorf("no HTTP/2 but %q", p)
		}
		return newH2Client(c, authority)
	}
}

func dialH1(network, address, host string) func(context.Context) (client, error) {
	return func(ctx context.Context) (client, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return newH1Client(conn, host), nil
	}
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return new(net.Dialer).DialContext(ctx, network, address)
}

// direct is the load generator with the certificate, and no proxy.
func (b *bench) direct(context.Context) (*target, error) {
	config, err := b.identity()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(b.up.url)
	if err != nil {
		return nil, err
	}
	return &target{dial: dialH2("tcp", u.Host, u.Host, config), stop: func() {}}, nil
}

// identity is the one client that the API server knows; the proxies that ask
// for a certificate know it, too.
func (b *bench) identity() (*tls.Config, error) {
	pool, err := readPool(b.up.pki.ca)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(b.up.pki.clientCert, b.up.pki.clientKey)
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, ServerName: "127.0.0.1"}, nil
}

// server is where the API server is, without a scheme.
func (b *bench) server() string { return strings.TrimPrefix(b.up.url, "https://") }

// listens waits until something accepts at a Unix socket.
func listens(ctx context.Context, socket string, gone <-chan error) error {
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case why := <-gone:
			return fmt.Errorf("it ended: %w", why)
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", socket, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

// look finds the workers of a master: it listens before it has any.
func (t *target) look() {
	if t.forks {
		t.pids = family(t.pids[0])
	}
}
