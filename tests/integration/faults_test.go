//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// TestUpstreamProxy: the way to the API server leads through a proxy, which
// alone can resolve the server's name.
func TestUpstreamProxy(t *testing.T) {
	t.Parallel()
	server := fmt.Sprintf("https://%s:%d", cluster.Name, suite.cluster.API.Port)
	for name, use := range map[string]func(h *home, p *hopProxy, upstream object){
		"proxy-url http":   func(_ *home, p *hopProxy, upstream object) { upstream["proxy-url"] = "http://" + p.address },
		"proxy-url socks5": func(_ *home, p *hopProxy, upstream object) { upstream["proxy-url"] = "socks5://" + p.socks },
		"HTTPS_PROXY":      func(h *home, p *hopProxy, _ object) { h.env["HTTPS_PROXY"] = "http://" + p.address },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, p := newHome(t), newHopProxy(t)
			cert, key := h.user("jane", "dev")
			upstream := object{"server": server, "certificate-authority-data": suite.cluster.CA.PEM}
			use(h, p, upstream)
			config := mtls(cert, key)
			config["upstream"] = upstream
			lib := h.library(server, suite.cluster.CA.PEM, config)
			if user, err := whoAmI(t.Context(), clientset(t, server, lib.RoundTripper())); err != nil || user != "jane" {
				t.Errorf("the API server sees %q, %v; want jane", user, err)
			}
			if n := p.connections.Load(); n == 0 || n > 2 {
				t.Errorf("%d connections went through the proxy, want one or two", n)
			}
		})
	}
	t.Run("unreachable", func(t *testing.T) {
		t.Parallel()
		h := newHome(t)
		cert, key := h.user("jane", "dev")
		address := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		config := mtls(cert, key)
		config["upstream"] = object{"server": server, "certificate-authority-data": suite.cluster.CA.PEM, "proxy-url": address}
		r := h.exec(plugin{server: server, config: config, lock: h.lock()})
		refused(t, r, 1, strings.TrimPrefix(address, "http://"))
	})
}

// TestRotation: new key and certificate files are a new identity for new
// requests; a watch that is open goes on.
func TestRotation(t *testing.T) {
	t.Parallel()
	h, ctx, ns := newHome(t), t.Context(), namespace(t)
	server := suite.cluster.API.URL
	cert, key := h.user("jane", "dev")
	lib := h.library(server, suite.cluster.CA.PEM, mtls(cert, key))
	c := clientset(t, server, lib.RoundTripper())
	before, err := lib.Credential(ctx)
	must(t, err)
	watch, err := c.CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{})
	must(t, err)
	defer watch.Stop()
	expect := func(name string) {
		t.Helper()
		_, err := suite.admin.CoreV1().ConfigMaps(ns).Create(ctx, configMap(name, ""), metav1.CreateOptions{})
		must(t, err)
		select {
		case e, open := <-watch.ResultChan():
			if !open {
				t.Fatalf("the watch ended before %s", name)
			}
			if m, err := json.Marshal(e.Object); err != nil || !strings.Contains(string(m), `"name":"`+name+`"`) {
				t.Fatalf("watched %s, want %s", m, name)
			}
		case <-time.After(patience):
			t.Fatalf("the watch stands still before %s", name)
		}
	}
	expect("before")

	// A key without its certificate is not an identity: the old one stays.
	next, err := suite.cluster.CA.Issue(pki.Options{CommonName: "jane-renewed", Organizations: []string{"dev"}})
	must(t, err)
	must(t, pki.WriteFile(key, next.Key))
	if user, err := whoAmI(ctx, c); err != nil || user != "jane" {
		t.Errorf("with half a new pair the API server sees %q, %v; want jane", user, err)
	}
	must(t, pki.WriteFile(cert, next.Cert))
	begin := time.Now()
	eventually(t, 15*time.Second, func() error {
		if user, err := whoAmI(ctx, c); err != nil || user != "jane-renewed" {
			return fmt.Errorf("the API server sees %q, %v", user, err)
		}
		return nil
	})
	t.Logf("new requests bear the new identity after %v", time.Since(begin))
	expect("after")
	p := h.proxy()
	if !p.NotAfter.Truncate(time.Second).Equal(next.Leaf.NotAfter) {
		t.Errorf("status shows a certificate until %v, the new one is until %v", p.NotAfter, next.Leaf.NotAfter)
	}
	after, err := lib.Credential(ctx)
	must(t, err)
	if before.Status.ClientKeyData != after.Status.ClientKeyData || before.Status.ProxyConfig.URL != after.Status.ProxyConfig.URL {
		t.Error("the session's own pair or socket changed with the upstream's certificate")
	}
}

// goaway is a second kube-apiserver over the same etcd, which sends away two
// connections of a hundred requests. It stays until the end of the run.
var goaway = sync.OnceValues(func() (*cluster.APIServer, error) {
	return suite.cluster.StartAPIServer(context.Background(), "kube-apiserver-goaway", "--goaway-chance=0.02")
})

// TestGoaway: the server sends clients away at random; none of them notices,
// and coming back costs no full handshake.
func TestGoaway(t *testing.T) {
	t.Parallel()
	const requests, inFlight = 2000, 16
	ctx := t.Context()
	api, err := goaway()
	must(t, err)
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	lib := h.library(api.URL, suite.cluster.CA.PEM, mtls(cert, key))
	client := &http.Client{Transport: lib.RoundTripper()}
	var next, bad atomic.Int64
	var wg sync.WaitGroup
	for range inFlight {
		wg.Go(func() {
			for next.Add(1) <= requests {
				if err := fetch(ctx, client, api.URL+"/api/v1/namespaces/default"); err != nil {
					bad.Add(1)
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	p := h.proxy()
	t.Logf("%d requests, %d failed; %d full and %d resumed handshakes, %d dials", requests, bad.Load(), p.Handshakes.Full, p.Handshakes.Resumed, p.Dials)
	if all := p.Handshakes.Full + p.Handshakes.Resumed; all < 5 {
		t.Errorf("%d handshakes: the server has not sent anybody away, this shows nothing", all)
	}
	if p.Handshakes.Full > 5 {
		t.Errorf("%d full handshakes, want at most 5", p.Handshakes.Full)
	}
}

func fetch(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}

// audit returns who the API server saw for the requests whose URI has the prefix.
func audit(t *testing.T, api *cluster.APIServer, prefix string) (users []string) {
	t.Helper()
	for _, e := range auditEvents(t, api, prefix) {
		users = append(users, e.User.Username)
	}
	return users
}

// auditEvent is what the API server wrote about a request that it had answered.
type auditEvent struct {
	Verb, RequestURI, Stage string
	User                    struct{ Username string }
	ResponseStatus          struct{ Code int }
}

func auditEvents(t *testing.T, api *cluster.APIServer, prefix string) (events []auditEvent) {
	t.Helper()
	f, err := os.Open(filepath.Clean(api.Audit))
	must(t, err)
	defer func() { _ = f.Close() }()
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20)
	mark, _, _ := strings.Cut(prefix, "&") // which JSON writes otherwise
	for scanner.Scan() {
		if !bytes.Contains(scanner.Bytes(), []byte(mark)) {
			continue // a long run's log takes long to decode
		}
		var e auditEvent
		if json.Unmarshal(scanner.Bytes(), &e) == nil && e.Stage == "ResponseComplete" && strings.HasPrefix(e.RequestURI, prefix) {
			events = append(events, e)
		}
	}
	must(t, scanner.Err())
	return events
}
