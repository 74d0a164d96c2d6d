package integration

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestMetrics: Prometheus gets the figures where it was told to, and nowhere
// else: every path of the API's listeners is the API server's.
func TestMetrics(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	s := h.serve(append(upstreamFlags(suite.cluster.API.URL, cert, key), "--metrics-address", address)...)
	c := s.client(t)
	for _, path := range []string{"/version", "/metrics"} {
		resp, err := c.Get(s.listen + path)
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		_ = resp.Body.Close()
		if strings.Contains(string(body), "execproxy_") {
			t.Errorf("%s on the API's listener shows our metrics", path)
		}
	}
	resp, err := http.Get("http://" + address + "/metrics")
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	for _, want := range []string{
		`execproxy_requests_total 2`, `execproxy_upstream_handshakes_total\{kind="full"\} 1`, `execproxy_signatures_total 1`,
		`execproxy_key_generation 1`, `execproxy_client_connections 1`, `execproxy_certificate_not_after_seconds [0-9.e+]+`, `process_resident_memory_bytes [0-9]+`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).Match(body) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	secrets := canaries{}
	secrets.addKey(t, key)
	secrets.absent(t, "the metrics", string(body))
}
