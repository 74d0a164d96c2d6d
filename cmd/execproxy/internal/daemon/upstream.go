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
func (d *Daemon) connect(ctx context.Context) error {
	c := d.config
	server, err := config.ServerURL(c.Server)
	if err != nil {
		return &config.FieldError{Field: "server", Err: err}
	}
	out, err := wayOut(c, d.opt.Environ, d.id.certificate(), d.log)
	if err != nil {
		return err
	}
	d.roots = out.RootCAs
	if d.upstream, err = transport.New(out); err != nil {
		return err
	}
	o := proxy.Options{
		Server: server, Transport: d.upstream, UpgradeTransport: d.upstream.Upgrade(), Verified: d.session.own.Verified,
		Sign: d.id.sign(), HashBody: d.id.hashesBody(), Refused: d.id.refused(),
		UnsignedPayload: c.UnsignedPayload, DisableCompression: c.DisableCompression, Logger: d.log,
	}
	if c.ForeignAuthorization == config.Passthrough {
		out.Certificate = nil
		anonymous, err := transport.New(out)
		if err != nil {
			return err
		}
		d.Cleanup(func() { _ = anonymous.Close() })
		o.ForeignAuthorization, o.Anonymous, o.AnonymousUpgrade = proxy.Passthrough, anonymous, anonymous.Upgrade()
	}
	if d.proxy, err = proxy.New(o); err != nil {
		return err
	}
	d.names = serverNames(c)
	if err := d.session.own.CheckNames(d.names); err != nil {
		return &config.FieldError{Field: "server, tls-server-name", Err: err}
	}
	if c.CertificateAuthority != "" {
		d.Cleanup(d.watchAuthority())
	}
	return d.prewarm(ctx)
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
		Certificate: cert, Proxy: via, Logger: log,
	}, nil
}

// prewarm makes the connection before the first client needs it. A sidecar may
// be there before its API server is.
func (d *Daemon) prewarm(ctx context.Context) error {
	err := d.upstream.Prewarm(ctx)
	if d.opt.Patient && (errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrTimeout)) {
		d.log.Warn("the API server does not answer yet", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	return nil
}

// rotate has the next connections made with the key and the authority of now, and
// makes one. An error says that the API server took none.
func (d *Daemon) rotate() error {
	if err := d.rotateTransport(); err != nil {
		d.log.Error("the changed key is not used, the old one stays", "error", err)
		return err
	}
	// The end of the proxy waits for this, and has a second.
	ctx, cancel := context.WithTimeout(d.work, 10*time.Second)
	defer cancel()
	err := d.upstream.Prewarm(ctx)
	if err != nil && d.work.Err() == nil {
		d.log.Warn("connecting with the changed key", "error", err)
	}
	return err
}

// rotateTransport is one at a time: what comes last is the newest.
func (d *Daemon) rotateTransport() error {
	d.rotating.Lock()
	defer d.rotating.Unlock()
	if roots, err := rootCAs(d.config); err != nil {
		d.log.Error("the changed certificate authority is not used, the old one stays", "error", err)
	} else {
		d.roots = roots
	}
	return d.upstream.Rotate(transport.Identity{Certificate: d.id.certificate(), RootCAs: d.roots})
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
