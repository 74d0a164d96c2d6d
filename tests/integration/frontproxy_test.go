//go:build linux

package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// frontProxy stands before kube-apiserver: it verifies SigV4 and asserts who
// signed, with the front-proxy client certificate.
type frontProxy struct {
	*httptest.Server
	verifier sigv4.Verifier
	forward  *httputil.ReverseProxy

	mu      sync.Mutex
	refused []error
	passed  int
}

// newFrontProxy starts one on host, an address of loopback. It holds the day's
// signing key, never the secret.
func newFrontProxy(t *testing.T, host string) *frontProxy {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(suite.cluster.Dir+"/front-proxy.crt", suite.cluster.Dir+"/front-proxy.key")
	must(t, err)
	api, err := url.Parse(suite.cluster.API.URL)
	must(t, err)
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: suite.cluster.CA.Pool(), Certificates: []tls.Certificate{cert}},
		ForceAttemptHTTP2: true, DisableCompression: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	upgrades := transport.Clone() // HTTP/2 knows no upgrade
	upgrades.ForceAttemptHTTP2, upgrades.TLSClientConfig.NextProtos = false, []string{"http/1.1"}
	upgrades.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	t.Cleanup(upgrades.CloseIdleConnections)
	f := &frontProxy{
		verifier: sigv4.Verifier{
			Region: "eu-central-1", Service: "execute-api",
			Lookup: func(id, date, region, service string) ([]byte, sigv4.Identity, error) {
				if id != awsKeyID {
					return nil, sigv4.Identity{}, sigv4.ErrUnknownKey
				}
				return sigv4.DeriveKey(awsSecret, date, region, service), sigv4.Identity{AccessKeyID: id, User: "arn:aws:iam::1:user/jane", Groups: []string{"dev"}}, nil
			},
			CheckSessionToken: func(_ sigv4.Identity, token string) error {
				if token != awsToken {
					return fmt.Errorf("session token of %d bytes", len(token))
				}
				return nil
			},
		},
		forward: &httputil.ReverseProxy{
			Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
				if r.Header.Get("Upgrade") != "" {
					return upgrades.RoundTrip(r)
				}
				return transport.RoundTrip(r)
			}),
			FlushInterval: -1,
			Rewrite: func(r *httputil.ProxyRequest) {
				r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = api.Scheme, api.Host, ""
			},
		},
	}
	f.Server = startTLS(t, host, f)
	return f
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// startTLS serves a handler with a certificate of the cluster's CA.
func startTLS(t *testing.T, host string, handler http.Handler) *httptest.Server {
	t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "hop", Hosts: []string{"127.0.0.1", "::1", "localhost"}})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	s := httptest.NewUnstartedServer(handler)
	_ = s.Listener.Close()
	s.Listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	must(t, err)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (f *frontProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name := range r.Header {
		if strings.HasPrefix(strings.ReplaceAll(strings.ToLower(name), "_", "-"), "x-remote-") {
			delete(r.Header, name)
		}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	hash := sha256.Sum256(body)
	view, err := signer.FromReceived(r, hex.EncodeToString(hash[:]))
	var id sigv4.Identity
	if err == nil {
		id, err = f.verifier.Verify(view)
	}
	f.mu.Lock()
	if err != nil {
		f.refused = append(f.refused, err)
	} else {
		f.passed++
	}
	f.mu.Unlock()
	if err != nil {
		http.Error(w, "front proxy: "+err.Error(), http.StatusForbidden)
		return
	}
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256"} {
		r.Header.Del(name)
	}
	r.Header.Set("X-Remote-User", id.User)
	r.Header["X-Remote-Group"] = append([]string{"system:authenticated"}, id.Groups...)
	r.Body = io.NopCloser(bytes.NewReader(body))
	f.forward.ServeHTTP(w, r)
}

// counts returns how many requests were let through, and why others were not.
func (f *frontProxy) counts() (passed int, refused []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.passed, append([]error(nil), f.refused...)
}

// tamperer is a hop between execproxy and the front proxy that holds a
// certificate it should not have, and changes what passes.
type tamperer struct {
	*httptest.Server
	mu     sync.Mutex
	change func(*http.Request)
}

func newTamperer(t *testing.T, next string) *tamperer {
	t.Helper()
	u, err := url.Parse(next)
	must(t, err)
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: suite.cluster.CA.Pool()},
		ForceAttemptHTTP2: true, DisableCompression: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	m := &tamperer{}
	m.Server = startTLS(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		out := r.Clone(context.WithoutCancel(r.Context()))
		out.RequestURI = ""
		out.URL.Scheme, out.URL.Host, out.Host = "https", u.Host, r.Host // Host is signed: keep it
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		if len(body) == 0 {
			out.Body = http.NoBody
		}
		m.mu.Lock()
		if m.change != nil {
			m.change(out)
		}
		m.mu.Unlock()
		resp, err := transport.RoundTrip(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	return m
}

func (m *tamperer) set(change func(*http.Request)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.change = change
}
