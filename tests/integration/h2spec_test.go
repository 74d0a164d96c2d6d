//go:build linux

package integration

import (
	"crypto/tls"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// h2specFails are the cases of h2spec that do not pass, and why that is right: none.
// A case is SECTION/CASE, as h2spec counts them.
var h2specFails = map[string]string{}

// specimen is what h2spec asks for: long enough for its cases of windows.
const specimen = `{"kind":"Specimen","apiVersion":"v1"}`

// TestH2spec: h2spec v2.2.1 through the Unix socket, whole. It knows neither Unix
// sockets nor client certificates; in between is a relay of bytes.
func TestH2spec(t *testing.T) {
	t.Parallel()
	h2spec, err := kubebin.H2spec()
	wanted(t, err)
	var asked atomic.Int64
	u := startTLS(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, specimen)
	}))
	h := newHome(t)
	s := h.janeOn(u.URL)
	address := s.relay(t)
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	report := h.path("h2spec.xml")
	r := h.run(h2spec, "--tls", "--insecure", "--host", "127.0.0.1", "--port", port, "--path", "/version", "--timeout", "2", "--junit-report", report)
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("no report: %v: %s", err, r)
	}
	passed, failed := readH2spec(t, data)
	t.Logf("%d of %d passed in %v", len(passed), len(passed)+len(failed), r.took)
	if n := len(passed) + len(failed); n != 145 {
		t.Errorf("%d cases ran, h2spec v2.2.1 has 145", n)
	}
	if len(passed) < 140 {
		t.Errorf("%d passed, want 140 at least", len(passed))
	}
	for name, why := range failed {
		if h2specFails[name] == "" {
			t.Errorf("%s fails: %s", name, why)
		}
	}
	for name, why := range h2specFails {
		if _, ok := passed[name]; ok {
			t.Errorf("%s passes, and is listed as one that does not, because %s", name, why)
		} else if _, ok := failed[name]; !ok {
			t.Errorf("%s is listed and h2spec has no such case", name)
		}
	}
	if n := asked.Load(); n < 10 {
		t.Errorf("%d requests reached the server: this shows nothing", n)
	}
	get(t, s.client(t), u.URL+"/version")
}

// readH2spec reads the report: what passed, and what failed with the reason.
func readH2spec(t *testing.T, report []byte) (passed, failed map[string]string) {
	t.Helper()
	var suites struct {
		Suites []struct {
			ID    string `xml:"id,attr"`
			Pkg   string `xml:"package,attr"`
			Cases []struct {
				Name    string  `xml:"classname,attr"`
				Failure *string `xml:"failure"`
				Error   *string `xml:"error"`
				Skipped *string `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	must(t, xml.Unmarshal(report, &suites))
	passed, failed = map[string]string{}, map[string]string{}
	for _, suite := range suites.Suites {
		for i, c := range suite.Cases {
			name := fmt.Sprintf("%s/%d", suite.Pkg, i+1)
			switch {
			case c.Failure != nil:
				failed[name] = c.Name + ": " + *c.Failure
			case c.Error != nil:
				failed[name] = c.Name + ": " + *c.Error
			case c.Skipped != nil:
				failed[name] = c.Name + ": skipped"
			default:
				passed[name] = c.Name
			}
		}
	}
	return passed, failed
}

// relay passes what comes to an address of loopback on to the Unix socket and
// back, byte for byte, with the session's pair; TLS ends in it on both sides. It
// returns the address.
func (s *onSocket) relay(t *testing.T) string {
	t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "relay", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
	must(t, err)
	config := s.d.tls(t, s.url, "h2")
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = in.Close() }()
				out, err := s.dialTLS(config)
				if err != nil {
					t.Errorf("the relay to the socket: %v", err)
					return
				}
				defer func() { _ = out.Close() }()
				wg.Go(func() {
					_, _ = io.Copy(in, out)
					_ = in.Close()
				})
				_, _ = io.Copy(out, in)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}
