package clientgo

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/metrics"

	"github.com/execproxy/execproxy/lockfile"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/proxy/socket"
)

// The test binary plays the plugin when PLUGIN is set to one of these roles:
//
//	serve  is a proxy on SOCKET until the client's lock is free
//	token  answers as a plugin that does not know the protocol
//	fail   exits with 3
//
// Each run adds a byte to the file COUNT.
const roleVariable = "CLIENTGO_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	metrics.Register(metrics.RegisterOpts{TransportCacheEntries: &cacheEntries})
	goleak.VerifyTestMain(m)
}

// cacheEntries counts how often client-go sets rest_client_transport_cache_entries, which
// it does whenever its cache is asked for a transport.
var cacheEntries gauge

type gauge struct{ observed atomic.Int64 }

func (g *gauge) Observe(int) { g.observed.Add(1) }

func (g *gauge) observations() int64 { return g.observed.Load() }

func play(role string) error {
	f, err := os.OpenFile(os.Getenv("COUNT"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write([]byte{'.'}); err != nil {
		return err
	}
	cred, err := clientauthentication.DecodeInfo([]byte(os.Getenv(clientauthentication.InfoVariable)))
	if err != nil {
		return err
	}
	switch role {
	case "serve":
		return serve(cred)
	case "token":
		cred.Status = &clientauthentication.Status{Token: "t"}
		data, err := cred.Encode()
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(data)
		return err
	}
	return errors.New("no luck today")
}

// serve is a proxy that answers every request itself.
func serve(cred *clientauthentication.ExecCredential) error {
	parent, err := lockfile.Open(cred.Spec.LockFilePath)
	if err != nil {
		return err
	}
	defer parent.Close()
	path := os.Getenv("SOCKET")
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	a, err := socket.NewAuthority(socket.AuthorityOptions{})
	if err != nil {
		return err
	}
	pair, err := a.ClientPair()
	if err != nil {
		return err
	}
	s := &http.Server{Handler: handler(a), TLSConfig: a.ServerConfig([]string{"k8s.example", "127.0.0.1"}, a), ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.ServeTLS(l, "", "") }()
	url, err := clientauthentication.SocketURL(path)
	if err != nil {
		return err
	}
	cred.Status = &clientauthentication.Status{
		ExpirationTimestamp:   time.Now().Add(4 * time.Minute),
		ClientCertificateData: string(pair.CertificatePEM), ClientKeyData: string(pair.KeyPEM),
		ProxyConfig: &clientauthentication.ProxyConfig{URL: url, CertificateAuthorityData: a.CertificatePEM()},
	}
	data, err := cred.Encode()
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write(data); err != nil {
		return err
	}
	defer s.Close()
	return parent.Wait(context.Background())
}

// seen is what the proxy answers.
type seen struct {
	PID               int
	Proto, Host, Path string
	Header            http.Header
	Info, Extra       string
}

// handler answers with what it saw, and echoes what is upgraded.
func handler(a *socket.Authority) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.Verified(r.TLS) {
			http.Error(w, "no pair", http.StatusUnauthorized)
			return
		}
		if protocol := r.Header.Get("Upgrade"); protocol != "" {
			conn, early, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
			_, _ = io.Copy(conn, early)
			return
		}
		_ = json.NewEncoder(w).Encode(seen{
			PID: os.Getpid(), Proto: r.Proto, Host: r.Host, Path: r.URL.RequestURI(), Header: r.Header,
			Info: os.Getenv(clientauthentication.InfoVariable), Extra: os.Getenv("EXTRA"),
		})
	})
}

// A bench is a plugin in a role, and what it works with.
type bench struct {
	t     testing.TB
	dir   string
	count string
	m     counts
}

func newBench(t testing.TB) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "g") // short: socket paths must be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &bench{t: t, dir: dir, count: filepath.Join(dir, "count"), m: counts{calls: map[string]int{}}}
}

func (b *bench) resolver() *Resolver {
	r := New(Options{Metrics: &b.m})
	b.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return r
}

// config is a rest.Config whose plugin plays a role.
func (b *bench) config(role string) *rest.Config {
	b.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	return &rest.Config{
		Host:            "https://k8s.example:6443",
		TLSClientConfig: rest.TLSClientConfig{CAData: []byte("the cluster's CA")},
		ExecProvider: &api.ExecConfig{
			Command: exe, APIVersion: clientauthentication.V1, InteractiveMode: api.IfAvailableExecInteractiveMode, ProvideClusterInfo: true,
			Env: []api.ExecEnvVar{
				{Name: roleVariable, Value: role}, {Name: "COUNT", Value: b.count}, {Name: "SOCKET", Value: filepath.Join(b.dir, "s")},
				{Name: "GORACE", Value: "atexit_sleep_ms=0"}, {Name: "EXTRA", Value: "first"}, {Name: "EXTRA", Value: "last"},
			},
			Config: &runtime.Unknown{Raw: []byte(`{"audience":"x"}`), ContentType: runtime.ContentTypeJSON},
		},
	}
}

func (b *bench) executions(want int) {
	b.t.Helper()
	data, err := os.ReadFile(b.count)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	if len(data) != want {
		b.t.Errorf("the plugin was executed %d times, want %d", len(data), want)
	}
}

// counts are metrics.
type counts struct {
	mu     sync.Mutex
	calls  map[string]int
	errors int
}

func (c *counts) ExecPluginWithProxyCall(code int, status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[fmt.Sprint(code, " ", status)]++
}

func (c *counts) ExecProxyError() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors++
}

func (c *counts) want(t testing.TB, failed int, calls map[string]int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errors != failed || fmt.Sprint(c.calls) != fmt.Sprint(calls) {
		t.Errorf("counted %v and %d errors, want %v and %d", c.calls, c.errors, calls, failed)
	}
}

func get(hc *http.Client, url string) (*seen, error) {
	resp, err := hc.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	s := new(seen)
	return s, json.NewDecoder(resp.Body).Decode(s)
}

func mustGet(t testing.TB, hc *http.Client, url string) *seen {
	t.Helper()
	s, err := get(hc, url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustSay(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
}

// connect sends CONNECT to a stream configuration's proxy.
func connect(t testing.TB, c *rest.Config, change func(*http.Request)) (net.Conn, *http.Response) {
	t.Helper()
	proxy, err := c.Proxy(nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", proxy.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r, err := http.NewRequest(http.MethodConnect, "http://k8s.example:6443", nil)
	if err != nil {
		t.Fatal(err)
	}
	secret, _ := proxy.User.Password()
	r.SetBasicAuth(proxy.User.Username(), secret)
	r.Header.Set("Proxy-Authorization", r.Header.Get("Authorization"))
	r.Header.Del("Authorization")
	if change != nil {
		change(r)
	}
	if err := r.Write(conn); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		t.Fatal(err)
	}
	return conn, resp
}

// upgrade makes an upgraded stream of a stream configuration by hand.
func upgrade(t testing.TB, c *rest.Config, change func(*tls.Config)) (net.Conn, error) {
	t.Helper()
	raw, resp := connect(t, c, nil)
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	config, err := rest.TLSConfigFor(c)
	if err != nil {
		t.Fatal(err)
	}
	config.ServerName = "k8s.example"
	if change != nil {
		change(config)
	}
	conn := tls.Client(raw, config)
	_, err = io.WriteString(conn, "POST /exec HTTP/1.1\r\nHost: k8s.example:6443\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	if err != nil {
		return nil, err
	}
	head := make([]byte, len("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"))
	if _, err = io.ReadFull(conn, head); err == nil && !strings.HasPrefix(string(head), "HTTP/1.1 101 ") {
		err = fmt.Errorf("%q", head)
	}
	return conn, err
}

// echoes checks that a stream passes bytes both ways.
func echoes(t testing.TB, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("%q came back as %q, %v", text, got, err)
	}
}
