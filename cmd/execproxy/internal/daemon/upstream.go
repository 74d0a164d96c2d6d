package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/proxy"
	"github.com/execproxy/execproxy/transport"
)

// connect makes the way out and the handler in front of it, and dials.
func (f *front) connect(ctx context.Context) error {
	c, d := f.config, f.d
	server, err := config.ServerURL(c.Server)
	if err != nil {
		return &config.FieldError{Field: "server", Err: err}
	}
	out, err := wayOut(c, d.opt.Environ, f.id.certificate(), d.log)
	if err != nil {
		return err
	}
	f.roots = out.RootCAs
	out.Flood = d.upstreamFloods.count
	if f.upstream, err = transport.New(out); err != nil {
		return err
	}
	o := proxy.Options{
		Server: server, Transport: f.upstream, Streams: f.upstream, UpgradeTransport: f.upstream.Upgrade(), Verified: d.session.own.Verified,
		Sign: f.id.sign(), SignFields: f.id.signFields(), HashBody: f.id.hashesBody(), Refused: f.id.refused(),
		UnsignedPayload: c.UnsignedPayload, DisableCompression: c.DisableCompression, Logger: d.log,
	}
	if c.ForeignAuthorization == config.Passthrough {
		out.Certificate = nil
		anonymous, err := transport.New(out)
		if err != nil {
			return err
		}
		f.closers = append(f.closers, func() { _ = anonymous.Close() })
		o.ForeignAuthorization, o.Anonymous, o.AnonymousUpgrade = proxy.Passthrough, anonymous, anonymous.Upgrade()
	}
	if f.proxy, err = proxy.New(o); err != nil {
		return err
	}
	return f.prewarm(ctx)
}

// wayOut is the way to the API server that the configuration names.
func wayOut(c *config.Config, environ []string, cert *tls.Certificate, log *slog.Logger) (o transport.Options, err error) {
	server, err := config.ServerURL(c.Server)
	if err != nil {
		return o, &config.FieldError{Field: "server", Err: err}
	}
	roots, err := rootCAs(c)
	if err != nil {
		return o, err
	}
	via, err := transport.ProxyFunc(c.ProxyURL, proxyEnvironment(environ))
	if err != nil {
		return o, err
	}
	return transport.Options{
		Address: hostPort(server), ServerName: c.TLSServerName, RootCAs: roots, InsecureSkipVerify: c.InsecureSkipTLSVerify,
		Certificate: cert, Proxy: via, NoRepeat: true, Logger: log,
	}, nil
}

// prewarm makes the connection before the first client needs it. A sidecar may
// be there before its API server is.
func (f *front) prewarm(ctx context.Context) error {
	err := f.upstream.Prewarm(ctx)
	if f.d.opt.Patient && (errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrTimeout)) {
		f.d.log.Warn("the API server does not answer yet", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	return nil
}

// rotate has the next connections made with the key and the authority of now, and
// makes one. An error says that the API server took none.
func (f *front) rotate() error {
	if err := f.rotateTransport(); err != nil {
		f.d.log.Error("the changed key is not used, the old one stays", "error", err)
		return err
	}
	// The end of the proxy waits for this, and has a second.
	ctx, cancel := context.WithTimeout(f.work, 10*time.Second)
	defer cancel()
	err := f.upstream.Prewarm(ctx)
	if err != nil && f.work.Err() == nil {
		f.d.log.Warn("connecting with the changed key", "error", err)
	}
	return err
}

// rotateTransport is one at a time: what comes last is the newest.
func (f *front) rotateTransport() error {
	f.rotating.Lock()
	defer f.rotating.Unlock()
	if roots, err := rootCAs(f.config); err != nil {
		f.d.log.Error("the changed certificate authority is not used, the old one stays", "error", err)
	} else {
		f.roots = roots
	}
	return f.upstream.Rotate(transport.Identity{Certificate: f.id.certificate(), RootCAs: f.roots})
}

// rootCAs is who may vouch for the API server; nil is the system's.
func rootCAs(c *config.Config) (*x509.CertPool, error) {
	data, name := c.CertificateAuthorityData, "certificate-authority-data"
	if c.CertificateAuthority != "" {
		var err error
		if data, err = os.ReadFile(c.CertificateAuthority); err != nil {
			return nil, &config.FieldError{Field: "certificate-authority", Err: fmt.Errorf("%w; name the PEM file with the CA of the API server", err)}
		}
		name = "certificate-authority"
	}
	if len(data) == 0 {
		if c.CertificateAuthority != "" {
			return nil, &config.FieldError{Field: name, Err: fmt.Errorf("%s is empty; it must hold PEM certificates", c.CertificateAuthority)}
		}
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		if c.CertificateAuthority != "" {
			return nil, &config.FieldError{Field: name, Err: fmt.Errorf("%s holds no PEM certificate; name the file with the CA of the API server", c.CertificateAuthority)}
		}
		return nil, &config.FieldError{Field: name, Err: errors.New("holds no PEM certificate; give the CA of the API server")}
	}
	return pool, nil
}

// hostPort is where an API server listens.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// proxyEnvironment is what the caller's environment says of proxies on the way.
func proxyEnvironment(environ []string) httpproxy.Config {
	var c httpproxy.Config
	for _, e := range environ {
		name, v, _ := strings.Cut(e, "=")
		if v == "" {
			continue
		}
		switch name {
		case "HTTPS_PROXY":
			c.HTTPSProxy = v
		case "https_proxy":
			if c.HTTPSProxy == "" {
				c.HTTPSProxy = v
			}
		case "NO_PROXY":
			c.NoProxy = v
		case "no_proxy":
			if c.NoProxy == "" {
				c.NoProxy = v
			}
		}
	}
	return c
}

var _ http.RoundTripper = (*transport.Transport)(nil)
