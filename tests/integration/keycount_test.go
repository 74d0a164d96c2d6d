//go:build linux

package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// replace puts a file in the place of another, whole.
func (h *home) replace(name, content string) {
	h.t.Helper()
	must(h.t, os.Rename(h.file(name+".new", content), h.path(name)))
}

// metrics is what a proxy tells Prometheus.
func (h *home) metrics(address string) string {
	h.t.Helper()
	r, err := http.Get("http://" + address + "/metrics")
	must(h.t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must(h.t, err)
	return string(b)
}

// through is a proxy with a key in front of a server.
func (h *home) through(server string, flags []string, more ...string) *faulty {
	h.t.Helper()
	args := append([]string{"--server", server, "--certificate-authority", suite.cluster.Dir + "/ca.crt", "--auth", "mtls", "--renew", "off"}, flags...)
	s := h.serve(append(args, more...)...)
	return &faulty{t: h.t, h: h, server: s, client: s.client(h.t)}
}

// storm makes n requests, some at once, and returns how often each status came.
func (f *faulty) storm(n, atOnce int, path string) map[int]int {
	f.t.Helper()
	var (
		mu    sync.Mutex
		codes = map[int]int{}
		next  atomic.Int64
		all   sync.WaitGroup
	)
	for range atOnce {
		all.Go(func() {
			for next.Add(1) <= int64(n) {
				r, err := f.client.Get(f.server.listen + path)
				if err != nil {
					f.t.Error(err)
					return
				}
				r.Body.Close()
				mu.Lock()
				codes[r.StatusCode]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return codes
}

// TestFewSignatures: a token signs once for fifty requests on a cold start, and
// less than ten times for two thousand at a server that sends clients away. Both
// the proxy and the token itself have counted.
func TestFewSignatures(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	hsm, _ := h.softHSM("execproxy", "pin-2718")
	shim := h.shim(hsm.Module)
	pin := h.file("pin", "pin-2718\n")
	flags := h.certified("pkcs11:token=execproxy;object=me", "--pkcs11-module", shim.Module, "--pin-source", pin)
	api, err := goaway()
	must(t, err)
	signed := func() int {
		t.Helper()
		n, err := shim.Calls("C_Sign")
		must(t, err)
		return n
	}
	before := signed()
	f := h.through(api.URL, flags)
	tests := signed() - before - 1 // the key signed once with each scheme when it was opened, and for the first connection
	if codes := f.storm(50, 50, "/api/v1/namespaces"); codes[http.StatusOK] != 50 {
		t.Errorf("fifty requests at once: %v", codes)
	}
	if p := h.proxy(); p.Key.Signatures != 1 || p.Handshakes.Full != 1 {
		t.Errorf("fifty requests at once: %d signatures, %+v; want one", p.Key.Signatures, p.Handshakes)
	}
	begin := time.Now()
	if codes := f.storm(2000, 16, "/api/v1/namespaces"); codes[http.StatusOK] != 2000 {
		t.Errorf("two thousand requests: %v", codes)
	}
	p := h.proxy()
	if p.Key.Signatures >= 10 {
		t.Errorf("two thousand requests: %d signatures, want less than ten", p.Key.Signatures)
	}
	if p.Dials < 10 {
		t.Errorf("only %d connections were made: the server sends nobody away", p.Dials)
	}
	if n := signed() - before - tests; n != int(p.Key.Signatures) {
		t.Errorf("the token has signed %d times, status says %d", n, p.Key.Signatures)
	}
	t.Logf("2050 requests in %v: %d connections, %+v, %d signatures", time.Since(begin), p.Dials, p.Handshakes, p.Key.Signatures)
}

// TestRefusedCertificate: a server that refuses the certificate costs a signature
// or two, not one for each request; a certificate that has ended costs none.
func TestRefusedCertificate(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	p := newPicky(t)
	f := h.through(p.url, h.certified(h.path("key.pem")))
	f.works()
	before := h.proxy()
	// The next certificate is one that the server does not know the issuer of.
	stranger, err := pki.NewCA("stranger")
	must(t, err)
	csr := h.execproxy("key", "csr", "--key", h.path("key.pem"), "--user", "mallory").ok(t)
	public, _ := parseRequest(t, csr)
	cert, err := stranger.Certify(public, pki.Options{CommonName: "mallory"})
	must(t, err)
	h.replace("me.crt", string(cert))
	eventually(t, patience, func() error {
		if now := h.proxy(); now.Identity != "mallory" {
			return fmt.Errorf("still %s", now.Identity)
		}
		return nil
	})
	begin := time.Now()
	codes := f.storm(300, 8, "/version")
	if codes[http.StatusOK] != 0 {
		t.Errorf("with a certificate that is refused: %v", codes)
	}
	now := h.proxy()
	// Over HTTP/1.1 each of the eight may have a handshake under way when the first fails.
	if n := now.Signatures - before.Signatures; n > 8+2+int64(time.Since(begin)/time.Second) {
		t.Errorf("300 requests with a refused certificate in %v: %d signatures", time.Since(begin), n)
	}
	t.Logf("300 requests with a refused certificate in %v: %v, %d signatures", time.Since(begin), codes, now.Signatures-before.Signatures)
	if _, body := f.get(); !strings.Contains(body, "refused the client certificate") {
		t.Errorf("the error: %s", body)
	}
	// A good one is used at once.
	h.certify("--key", h.path("key.pem"))
	t.Logf("with a good one again after %v", f.works())
}

// TestExpiredCertificate: what has ended is refused here, without any signature.
func TestExpiredCertificate(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	p := newPicky(t)
	h.execproxy("key", "create", "--key", h.path("key.pem")).ok(t)
	csr := h.execproxy("key", "csr", "--key", h.path("key.pem"), "--user", "jane").ok(t)
	public, _ := parseRequest(t, csr)
	const life = 8 * time.Second
	cert, err := suite.cluster.CA.Certify(public, pki.Options{CommonName: "jane", Age: time.Hour, Lifetime: time.Hour + life})
	must(t, err)
	f := h.through(p.url, []string{"--key", h.path("key.pem"), "--cert", h.file("me.crt", string(cert))})
	f.works()
	eventually(t, patience, func() error {
		code, body := f.get()
		if code == http.StatusOK || !strings.Contains(body, "client certificate has expired") {
			return fmt.Errorf("%d: %s", code, body)
		}
		return nil
	})
	before, seen := h.proxy(), p.seen.Load()
	if codes := f.storm(200, 8, "/version"); codes[http.StatusOK] != 0 {
		t.Errorf("with a certificate that has ended: %v", codes)
	}
	if now := h.proxy(); now.Signatures != before.Signatures || now.Dials != before.Dials || p.seen.Load() != seen {
		t.Errorf("200 requests with a certificate that has ended: before %+v, now %+v", before, now)
	}
}

// TestKeyMetrics: what Prometheus sees of a key.
func TestKeyMetrics(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	p := newPicky(t)
	hsm, _ := h.softHSM("execproxy", "pin-2718")
	shim := h.shim(hsm.Module)
	flags := h.certified("pkcs11:token=execproxy;object=me", "--pkcs11-module", shim.Module, "--pin-source", h.file("pin", "pin-2718\n"))
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	f := h.through(p.url, flags, "--metrics-address", address)
	f.works()
	must(t, shim.Set("C_Sign", "crash"))
	f.fails(6 * time.Second)
	must(t, shim.Set("C_Sign", ""))
	f.works()
	text := h.metrics(address)
	for _, want := range []string{
		`execproxy_key_signatures_total{home="pkcs11",key="`, `result="ok"} `, `result="error"} `, `execproxy_key_signature_seconds_bucket{home="pkcs11",`,
		`le="+Inf"} `, `execproxy_key_signature_seconds_sum{`, `execproxy_key_signature_seconds_count{`, "execproxy_key_queue_depth 0", "execproxy_key_reopened_total ",
		"execproxy_certificate_not_after_seconds ", `execproxy_upstream_handshakes_total{kind="full"} `, `execproxy_upstream_handshakes_total{kind="resumed"} 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "execproxy_key_reopened_total 0") || strings.Contains(text, `result="error"} 0`) {
		t.Errorf("nothing counted:\n%s", text)
	}
}
