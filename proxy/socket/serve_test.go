package socket

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"
	"time"
)

// served starts a TLS server that answers with the client's verified name, and returns a way to ask it.
func served(t testing.TB, a *Authority, server *tls.Config) (ask func(*tls.Config) (body string, state *tls.ConnectionState, err error)) {
	t.Helper()
	l, err := ListenLoopback("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{TLSConfig: server, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.Verified(r.TLS) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "nobody")
			return
		}
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	ask = func(c *tls.Config) (string, *tls.ConnectionState, error) {
		tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true, DisableKeepAlives: true}
		defer tr.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+l.Addr().String(), nil)
		if err != nil {
			return "", nil, err
		}
		res, err := tr.RoundTrip(req)
		if err != nil {
			return "", nil, err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return string(b), res.TLS, err
	}
	return ask
}

func TestServerConfig(t *testing.T) {
	a, other := newTestAuthority(t, nil), newTestAuthority(t, nil)
	ask := served(t, a, a.ServerConfig([]string{"prod.example.com", "10.0.0.1", "Tls-Server-Name.", "[fd00::1]", "10.0.0.1"}, a))
	mine := pairOf(t, a)
	present := func(c *tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
	}

	for _, name := range []string{"prod.example.com", "PROD.example.com", "10.0.0.1", "tls-server-name", "fd00::1"} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			body, state, err := ask(&tls.Config{RootCAs: pool(t, a), ServerName: name, Certificates: []tls.Certificate{*mine}, MinVersion: version, MaxVersion: version})
			if err != nil || body != pairName || state.NegotiatedProtocol != "h2" || state.Version != version {
				t.Errorf("%s, %s: %q, %v", name, tls.VersionName(version), body, err)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		config *tls.Config
		want   string // in body or error
	}{
		{"no pair: told by the handler", &tls.Config{RootCAs: pool(t, a)}, "nobody"},
		{"HTTP/1.1", &tls.Config{RootCAs: pool(t, a), NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{*mine}}, pairName},
		{"another daemon's CA", &tls.Config{RootCAs: pool(t, other)}, "unknown authority"},
		{"a name that is not ours", &tls.Config{RootCAs: pool(t, a), ServerName: "example.com"}, "not example.com"},
		{"another daemon's pair", &tls.Config{RootCAs: pool(t, a), GetClientCertificate: present(pairOf(t, other))}, "nobody"},
		{"another daemon's pair, offered by issuer", &tls.Config{RootCAs: pool(t, a), Certificates: []tls.Certificate{*pairOf(t, other)}}, "nobody"},
		{"a server certificate as a client's", &tls.Config{RootCAs: pool(t, a), GetClientCertificate: present(serverCert(t, a))}, "nobody"},
		{"TLS 1.1", &tls.Config{RootCAs: pool(t, a), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "protocol version"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.config.ServerName == "" {
				tt.config.ServerName = "prod.example.com"
			}
			body, _, err := ask(tt.config)
			if err != nil {
				body = err.Error()
			}
			if !strings.Contains(body, tt.want) {
				t.Errorf("got %q, want %q", body, tt.want)
			}
		})
	}
}

func serverCert(t testing.TB, a *Authority) *tls.Certificate {
	t.Helper()
	c, err := a.ServerConfig([]string{"prod.example.com"}, nil).GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A session that is resumed is still the client's; one that began without a pair does not get one.
func TestResumption(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, with := range []bool{true, false} {
			clock := newClock()
			a := newTestAuthority(t, clock)
			ask := served(t, a, a.ServerConfig([]string{"prod.example.com"}, a))
			c := &tls.Config{RootCAs: pool(t, a), ServerName: "prod.example.com", ClientSessionCache: tls.NewLRUClientSessionCache(8),
				MinVersion: version, MaxVersion: version, Time: clock.now}
			want := "nobody"
			if with {
				want, c.Certificates = pairName, []tls.Certificate{*pairOf(t, a)}
			}
			for i, resumed := range []bool{false, true, true} {
				body, state, err := ask(c)
				if err != nil || body != want || state.DidResume != resumed {
					t.Errorf("%s, pair %t, connection %d: %q, resumed %t, %v", tls.VersionName(version), with, i, body, err == nil && state.DidResume, err)
				}
			}
			clock.step(31 * 24 * time.Hour) // the pair is over, and no ticket prolongs it
			if body, state, err := ask(c); err == nil && (body == pairName || state.DidResume) {
				t.Errorf("%s, pair %t: %q a month later, resumed %t", tls.VersionName(version), with, body, state.DidResume)
			}
		}
	}
}

func TestServerCertificateRotates(t *testing.T) {
	clock := newClock()
	a := newTestAuthority(t, clock)
	config := a.ServerConfig([]string{"prod.example.com"}, a)
	get := func() *x509.Certificate {
		t.Helper()
		c, err := config.GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: "prod.example.com", Roots: pool(t, a), CurrentTime: clock.now()}); err != nil {
			t.Errorf("at %s: %v", clock.now(), err)
		}
		for _, skew := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
			if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool(t, a), CurrentTime: clock.now().Add(skew)}); err != nil {
				t.Errorf("a client whose clock is off by %s: %v", skew, err)
			}
		}
		return c.Leaf
	}
	first := get()
	clock.step(leafRenew - time.Second)
	if !get().Equal(first) {
		t.Error("rotated early")
	}
	clock.step(time.Second)
	second := get()
	if second.Equal(first) || first.NotAfter.Sub(clock.now()) < 12*time.Hour {
		t.Errorf("rotated %s before the end", first.NotAfter.Sub(clock.now()))
	}
	clock.step(90 * 24 * time.Hour) // asleep
	if get().Equal(second) {
		t.Error("did not rotate after a long sleep")
	}
	clock.step(-365 * 24 * time.Hour) // the clock is set
	get()
	if len(first.ExtKeyUsage) != 1 || first.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || first.IsCA {
		t.Errorf("usage %v, CA %t", first.ExtKeyUsage, first.IsCA)
	}
}
