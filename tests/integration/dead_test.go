//go:build linux

package integration

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// TestSilentUpstream: packets get lost without a word, both ways. A watch that
// would wait for ever ends with an error in time, and requests find a new way.
func TestSilentUpstream(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	w, url := newWire(t, u.url)
	p := h.jane(u)
	p.server = url
	d := h.open(p)
	client := d.client(t, url)
	client.Timeout = 0
	watch, events, err := firstLine(t.Context(), client, url+"/watch")
	must(t, err)
	defer func() { _ = watch.Body.Close() }()

	w.cut()
	begin := time.Now()
	ended := make(chan error, 1)
	go func() { _, err := events.ReadByte(); ended <- err }()
	select {
	case err := <-ended:
		if err == nil || err == io.EOF {
			t.Errorf("the watch ended with %v: it must not look like a whole answer", err)
		}
		t.Logf("the watch ended after %v: %v", time.Since(begin), err)
	case <-time.After(15 * time.Second):
		t.Fatal("the watch still waits after 15 s")
	}
	w.mend()
	mended := time.Now()
	eventually(t, 15*time.Second, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		return fetch(ctx, client, url+"/version")
	})
	t.Logf("requests pass %v after the network does", time.Since(mended))
	again, _, err := firstLine(t.Context(), client, url+"/watch")
	must(t, err)
	_ = again.Body.Close()
}

// turncoat is an API server whose certificate can be changed while it runs.
type turncoat struct {
	url     string
	tls     atomic.Pointer[tls.Config]
	restart func() // ends all connections there are
}

func newTurncoat(t *testing.T, first *pki.CA) *turncoat {
	t.Helper()
	c := &turncoat{}
	c.present(t, first)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/watch") {
			_, _ = io.WriteString(w, firstEvent)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "{}\n")
	}))
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return c.tls.Load(), nil
	}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are what is wanted
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	c.url, c.restart = s.URL, s.CloseClientConnections
	return c
}

func (c *turncoat) present(t *testing.T, ca *pki.CA) {
	t.Helper()
	pair, err := ca.Issue(pki.Options{CommonName: "turncoat", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
	// Like a server that was started anew, it does not know the sessions of before.
	var key [32]byte
	_, _ = rand.Read(key[:])
	config.SetSessionTicketKeys([][32]byte{key})
	c.tls.Store(config)
}

// TestAuthorityRotates: the API server gets certificates of another authority,
// and the file that vouches for it follows. Nobody trusts the old one then.
func TestAuthorityRotates(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	before, err := pki.NewCA("before")
	must(t, err)
	after, err := pki.NewCA("after")
	must(t, err)
	c := newTurncoat(t, before)
	cert, key := h.user("jane", "dev")
	ca := h.file("upstream-ca.crt", string(before.PEM))
	s := h.serve("--server", c.url, "--certificate-authority", ca, "--auth", "mtls", "--cert", cert, "--key", key)
	client := s.http2(t)
	get(t, client, s.listen+"/version")

	// A new certificate of the same authority is nobody's concern. A request on
	// the connection that just goes down with the server may be lost.
	c.present(t, before)
	c.restart()
	eventually(t, 2*time.Second, func() error { return fetch(t.Context(), client, s.listen+"/version") })

	untrusted := func() error {
		resp, err := client.Get(s.listen + "/version")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if resp.StatusCode < 500 || resp.Header.Get("Execproxy-Error") != "UpstreamUntrusted" {
			return fmt.Errorf("%s %q: %s", resp.Status, resp.Header.Get("Execproxy-Error"), body)
		}
		return nil
	}
	c.present(t, after)
	c.restart()
	eventually(t, 2*time.Second, untrusted)
	must(t, pki.WriteFile(ca, after.PEM))
	begin := time.Now()
	eventually(t, patience, func() error { return fetch(t.Context(), client, s.listen+"/version") })
	took := time.Since(begin)
	t.Logf("the new authority is in use after %v", took)
	if took > 15*time.Second {
		t.Errorf("it took %v, want at most 15 s", took)
	}
	watch, _, err := firstLine(t.Context(), client, s.listen+"/watch")
	must(t, err)
	_ = watch.Body.Close()
	c.present(t, before)
	c.restart()
	eventually(t, 2*time.Second, untrusted)
}
