//go:build linux

package integration

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSquattedPort: somebody else listens where alice's kubeconfig leads. Her
// clients stop there, and give away neither a request nor a certificate.
func TestSquattedPort(t *testing.T) {
	t.Parallel()
	alice, mallory := newAccount(t, "alice"), newAccount(t, "mallory")
	a, m, u := alice.home(t), mallory.home(t), newUpstream(t)

	// The plugin finds the port taken, and kubectl asks nobody.
	kc := a.ownKubeconfig("alice")
	server, err := url.Parse(serverOf(t, kc))
	must(t, err)
	squat := m.startCmd(m.role(roleSquat, server.Host))
	squat.stdout.await(t, "listening")
	r := a.kubectl(kc, "auth", "whoami")
	if r.code == 0 || r.stdout != "" || !strings.Contains(r.stderr, server.Host) || !strings.Contains(r.stderr, "execproxy kubeconfig") {
		t.Errorf("a taken port: %s", r)
	}
	if n, gained := spoken(squat.stdout.String()); n > 0 {
		t.Errorf("kubectl connected %d times after its plugin had failed: %q", n, gained)
	}
	// A kubeconfig that is printed now names another port, and works.
	plain := a.kubeconfig("plain", suite.cluster.API.URL, a.path("alice.crt"), a.path("alice.key"))
	again := a.file("again", a.execproxy("kubeconfig", "--kubeconfig", plain, "--command", a.bin).ok(t))
	if serverOf(t, again) == server.String() {
		t.Errorf("printed again, it names the taken port %s", server.Host)
	}
	if got := whoami(t, a, again); got != "alice" {
		t.Errorf("by another port she is %q", got)
	}

	a.execproxy("stop", "--all").ok(t)

	// A client with a pair in hand: its proxy was killed, and the port is taken at once.
	s := a.serve(upstreamFlags(u.url, a.path("alice.crt"), a.path("alice.key"))...)
	address := strings.TrimPrefix(s.listen, "https://")
	get(t, s.client(t), s.listen+"/version")
	requests := u.count()
	must(t, s.cmd.Process.Kill())
	<-s.done
	for _, left := range a.remains() {
		must(t, os.Remove(left)) // of a proxy that could not
	}
	second := m.startCmd(m.role(roleSquat, address))
	second.stdout.await(t, "listening")
	if r := a.kubectl(s.kubeconfig, "get", "namespaces"); r.code == 0 || !strings.Contains(r.stderr, "x509") {
		t.Errorf("a squatter with a CA of his own: %s", r)
	}
	n, gained := spoken(second.stdout.String())
	if n == 0 || len(gained) > 0 {
		t.Errorf("%d connections came to the squatter, who got %q", n, gained)
	}
	// He would have seen what is sent without care, or this would show nothing.
	config := s.client(t).Transport
	careless := &http.Client{Transport: config}
	if tr := tlsOf(config); tr == nil {
		t.Fatalf("no TLS configuration in %T", config)
	} else {
		tr.InsecureSkipVerify, tr.RootCAs = true, nil
		careless.Transport = &http.Transport{TLSClientConfig: tr}
	}
	_, _ = careless.Get(s.listen + "/careless")
	eventually(t, 5*time.Second, func() error {
		if _, gained := spoken(second.stdout.String()); len(gained) != 1 || !strings.Contains(gained[0], "1 certificates") {
			return fmt.Errorf("of a careless client he got %q", gained)
		}
		return nil
	})
	second.signal(syscall.SIGKILL)
	<-second.done

	// Mallory's own proxy is no better than any other server.
	cert, key := m.user("mallory")
	ms := m.start(append([]string{m.bin, "serve", "--listen", s.listen, "--kubeconfig-out", m.path("mine")}, upstreamFlags(u.url, cert, key)...)...)
	eventually(t, patience, func() error { _, err := os.Stat(m.path("mine")); return err })
	if r := a.kubectl(s.kubeconfig, "get", "namespaces"); r.code == 0 || !strings.Contains(r.stderr, "x509") {
		t.Errorf("mallory's execproxy at alice's port: %s", r)
	}
	if u.count() != requests {
		t.Errorf("%d requests went out as somebody", u.count()-requests)
	}
	ms.signal(syscall.SIGTERM)
	ms.wait()
}

// tlsOf is a copy of what a client of a kubeconfig uses in its handshakes.
func tlsOf(rt http.RoundTripper) *tls.Config {
	for rt != nil {
		if t, ok := rt.(*http.Transport); ok {
			return t.TLSClientConfig.Clone()
		}
		w, ok := rt.(interface{ WrappedRoundTripper() http.RoundTripper })
		if !ok {
			return nil
		}
		rt = w.WrappedRoundTripper()
	}
	return nil
}
