package daemon

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/proxy/socket"
)

// A checkup finds out whether our own listeners answer. It connects as a client
// does and is known by a certificate whose key never leaves this process: no path of
// the API is ours to answer at, and nobody else gets such an answer.
type checkup struct{ pair tls.Certificate }

func newCheckup() (*checkup, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of our own checks: %w", err)
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(100, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of our own checks: %w", err)
	}
	return &checkup{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}}, nil
}

// asks reports whether a request is the checkup's. The handshake has proved the key.
func (p *checkup) asks(r *http.Request) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) == 1 && bytes.Equal(r.TLS.PeerCertificates[0].Raw, p.pair.Certificate[0])
}

// Healthy asks every listener of the API over a connection of its own, and returns
// the first failure: whoever cannot be served now. The API server is not asked; it
// being down is not mended by ending this proxy.
func (d *Daemon) Healthy(ctx context.Context) error {
	select {
	case <-d.ready:
	default:
		return errStarting
	}
	urls := d.urls()
	errs := make([]error, len(urls))
	var all sync.WaitGroup
	for i, url := range urls {
		all.Go(func() {
			if err := d.ask(ctx, url); err != nil {
				errs[i] = fmt.Errorf("%s does not answer: %w", url, err)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

var errStarting = &refusal{Message: "the proxy is starting"}

func (d *Daemon) ask(ctx context.Context, url string) error {
	addr, unix := strings.CutPrefix(url, "unix://")
	roots, name := d.session.own, "localhost"
	if !unix {
		addr = strings.TrimPrefix(url, "https://")
		a, err := d.session.loopbackAuthority()
		if err != nil {
			return err
		}
		roots = a
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots.CertificatePEM())
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{
			RootCAs: pool, ServerName: name,
			// Whatever authorities the listener names.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &d.checkup.pair, nil },
		},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if unix {
				return socket.Dial(ctx, addr)
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost/", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		return fmt.Errorf("somebody else answers there: %s", res.Status)
	}
	return nil
}
