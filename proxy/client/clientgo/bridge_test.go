package clientgo

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/execproxy/execproxy/proxy/socket"
)

func (b *bench) streams() (*Resolved, *rest.Config) {
	b.t.Helper()
	res, err := b.resolver().Resolve(b.t.Context(), b.config("serve"))
	if err != nil {
		b.t.Fatal(err)
	}
	c, err := res.StreamConfig()
	if err != nil {
		b.t.Fatal(err)
	}
	return res, c
}

func TestStream(t *testing.T) {
	b := newBench(t)
	res, c := b.streams()
	conn, err := upgrade(t, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, conn, "hello\x00\xff\n")
	echoes(t, conn, strings.Repeat("0123456789abcdef", 1<<16))
	// What ends on one side ends on the other.
	if err := conn.(*tls.Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	if again, err := res.StreamConfig(); err != nil || string(again.KeyData) != string(c.KeyData) || string(again.CAData) != string(c.CAData) {
		t.Errorf("a second StreamConfig is another one, %v", err)
	}
	// It is a whole rest.Config, if not one that is cached.
	c = rest.CopyConfig(c)
	c.NegotiatedSerializer = codecs
	hc, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	defer hc.CloseIdleConnections()
	if s := mustGet(t, hc, "https://k8s.example:6443/version"); s.Proto != "HTTP/1.1" || s.Host != "k8s.example:6443" {
		t.Errorf("the proxy saw %+v", s)
	}
	b.executions(1)
}

// The same configuration serves on when the proxy has died and come back with another CA
// and pair.
func TestStreamAfterRestart(t *testing.T) {
	b := newBench(t)
	res, c := b.streams()
	conn, err := upgrade(t, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	kill(t, mustGet(t, res.HTTPClient, "https://k8s.example:6443/").PID)
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the stream outlived its proxy")
	}
	if conn, err = upgrade(t, c, nil); err != nil {
		t.Fatal(err)
	}
	echoes(t, conn, "again")
	b.executions(2)
}

// Who is not the configuration's owner gets nothing, and the proxy is not asked.
func TestStreamStrangers(t *testing.T) {
	b := newBench(t)
	_, c := b.streams()
	for name, tc := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"no password":    {func(r *http.Request) { r.Header.Del("Proxy-Authorization") }, http.StatusProxyAuthRequired},
		"wrong password": {func(r *http.Request) { r.Header.Set("Proxy-Authorization", "Basic c3RyZWFtOng=") }, http.StatusProxyAuthRequired},
		"another host":   {func(r *http.Request) { r.URL.Host, r.Host = "other.example:443", "other.example:443" }, http.StatusForbidden},
		"another port":   {func(r *http.Request) { r.URL.Host, r.Host = "k8s.example:22", "k8s.example:22" }, http.StatusForbidden},
		"a browser":      {func(r *http.Request) { r.Method = http.MethodGet; r.Header.Del("Proxy-Authorization") }, http.StatusProxyAuthRequired},
		"not CONNECT":    {func(r *http.Request) { r.Method = http.MethodGet }, http.StatusMethodNotAllowed},
		"too long":       {func(r *http.Request) { r.Header.Set("X-Long", strings.Repeat("x", headLimit)) }, http.StatusBadRequest},
	} {
		conn, resp := connect(t, c, tc.change)
		if resp.StatusCode != tc.want {
			t.Errorf("%s: %s, want %d", name, resp.Status, tc.want)
		}
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadAll(conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: the connection stays open", name)
		}
	}

	another, err := socket.NewAuthority(socket.AuthorityOptions{})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := another.ClientPair()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(foreign.CertificatePEM, foreign.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*tls.Config){
		"no pair": func(c *tls.Config) { c.GetClientCertificate = nil },
		"another pair": func(c *tls.Config) {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		},
	} {
		if _, err := upgrade(t, c, change); err == nil {
			t.Errorf("%s: the stream was opened", name)
		}
	}
	if _, err := upgrade(t, c, func(c *tls.Config) { c.ServerName = "other.example" }); err == nil {
		t.Error("the bridge proves another name")
	}
}

// A dialer of streams must not go past the proxy.
func TestConfigIsNotForStreams(t *testing.T) {
	b := newBench(t)
	res, _ := b.streams()
	if _, err := res.Config.Proxy(nil); err == nil {
		t.Error("no error")
	} else {
		mustSay(t, err, "StreamConfig")
	}
	c := rest.CopyConfig(res.Config)
	c.Transport, c.NegotiatedSerializer = nil, codecs
	hc, err := rest.HTTPClientFor(c) // as AnonymousClientConfig and its like make it
	if err != nil {
		t.Fatal(err)
	}
	_, err = hc.Get("https://k8s.example:6443/")
	mustSay(t, err, "StreamConfig")
}
