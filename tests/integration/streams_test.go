//go:build linux

package integration

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// ways are the two ways to authenticate that every stream must survive.
func ways(t *testing.T, test func(t *testing.T, h *home, config object)) {
	t.Helper()
	t.Parallel()
	for _, way := range []string{"mtls", "sigv4"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			if way == "sigv4" {
				h.sharedCredentials()
				test(t, h, sigv4Config())
				return
			}
			cert, key := h.user("jane", "dev")
			test(t, h, mtls(cert, key))
		})
	}
}

// authenticated checks that a request bears the identity of its way.
func authenticated(t *testing.T, config object, s seen) {
	t.Helper()
	if config["auth"] == "mtls" && (s.user != "jane" || s.header.Get("Authorization") != "") {
		t.Errorf("%s came from %q with Authorization %q, want jane's certificate alone", s.target, s.user, s.header.Get("Authorization"))
	}
	if config["auth"] == "sigv4" && !strings.HasPrefix(s.header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
		t.Errorf("%s came without a signature: %v", s.target, s.header)
	}
}

// TestTargetIsByteExact: nothing is sorted, decoded, cleaned or dropped; what
// cannot be signed as it is is refused with 400.
func TestTargetIsByteExact(t *testing.T) {
	ways(t, func(t *testing.T, h *home, config object) {
		u := newUpstream(t)
		d := h.open(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: h.lock()})
		conn, r := d.dial(t, u.url)
		host := strings.TrimPrefix(u.url, "https://")
		for i, target := range []string{
			"/api/v1/namespaces/x/pods/p/exec?command=ls&command=-la&command=/tmp&stdout=true",
			"/apis/example.com/v1/things/a:b?z=1&a=2&z=0",
			"/api/v1/namespaces/x/services/https:web:443/proxy/a%2Fb/c%20d",
			"/q?empty&empty=&space=a+b&space=a%20b",
			"/twice//slashed", "/dot/../segments/./here", "/semi;colon?a=1;b=2", "/bad%zzpercent", "/?labelSelector=a%3Db,c%21%3Dd",
		} {
			// The number tells the requests apart even where a path were changed.
			separator := "?"
			if strings.Contains(target, "?") {
				separator = "&"
			}
			target += fmt.Sprintf("%sn%d", separator, i)
			before := u.count()
			_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, host)
			must(t, err)
			resp, err := http.ReadResponse(r, nil)
			must(t, err)
			body, err := io.ReadAll(resp.Body)
			must(t, err)
			switch {
			case resp.StatusCode == http.StatusBadRequest && i >= 4 && u.count() == before:
				t.Logf("%s is refused: %s", target, body)
				if resp.Close {
					conn, r = d.dial(t, u.url)
				}
			case resp.StatusCode != http.StatusOK:
				t.Errorf("%s: %s: %s", target, resp.Status, body)
			default:
				s := u.last(t, "")
				if s.target != target {
					t.Errorf("sent %s, the upstream got %s", target, s.target)
				}
				authenticated(t, config, s)
			}
		}
	})
}

func TestWatchFirstByte(t *testing.T) {
	ways(t, func(t *testing.T, h *home, config object) {
		u := newUpstream(t)
		d := h.open(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: h.lock()})
		client := d.client(t, u.url)
		get(t, client, u.url+"/version") // connections are there
		begin := time.Now()
		resp, err := client.Get(u.url + "/watch")
		must(t, err)
		defer func() { _ = resp.Body.Close() }()
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		must(t, err)
		took := time.Since(begin)
		if line != firstEvent {
			t.Errorf("first line: %q", line)
		}
		// The upstream keeps the watch open: only an immediate flush gets here.
		t.Logf("first event after %v", took)
		if took > time.Second {
			t.Errorf("first event after %v", took)
		}
		authenticated(t, config, u.last(t, "/watch"))
	})
}

func TestUpgrade(t *testing.T) {
	ways(t, func(t *testing.T, h *home, config object) {
		u := newUpstream(t)
		d := h.open(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: h.lock()})
		const target = "/api/v1/namespaces/x/pods/p/exec?command=ls&command=-la&command=/tmp"
		for method, protocol := range map[string]string{"GET": "websocket", "POST": "SPDY/3.1"} {
			conn, r := d.upgrade(t, u.url, method, target, protocol)
			echoes(t, conn, r, "hello\x00\xff\n")
			echoes(t, conn, r, strings.Repeat("0123456789abcdef", 1024))
			s := u.last(t, "/api/")
			if s.method != method || s.target != target || s.proto != "HTTP/1.1" {
				t.Errorf("upgrade to %s arrived as %s %s %s", protocol, s.method, s.target, s.proto)
			}
			authenticated(t, config, s)
			must(t, conn.Close())
		}
	})
}

// TestBodies: what goes up and comes down is the same bytes.
func TestBodies(t *testing.T) {
	ways(t, func(t *testing.T, h *home, config object) {
		u := newUpstream(t)
		u.release()
		d := h.open(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: h.lock()})
		client := d.client(t, u.url)
		want := sha256.Sum256(u.body)
		got := sha256.Sum256([]byte(get(t, client, u.url+"/large")))
		if got != want {
			t.Error("a body of 8 MiB came down changed")
		}
		up := u.body[:3<<20]
		resp, err := client.Post(u.url+"/post", "application/octet-stream", strings.NewReader(string(up)))
		must(t, err)
		_ = resp.Body.Close()
		hash := sha256.Sum256(up)
		if s := u.last(t, "/post"); resp.StatusCode != http.StatusOK || s.hash != hex.EncodeToString(hash[:]) {
			t.Errorf("a body of 3 MiB went up: %s, its hash there is %s", resp.Status, s.hash)
		}
		if config["auth"] != "sigv4" {
			return
		}
		// One byte more than a signer hashes is refused, and says why.
		resp, err = client.Post(u.url+"/too-large", "application/octet-stream", strings.NewReader(string(u.body[:3<<20+1])))
		must(t, err)
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusRequestEntityTooLarge || resp.Header.Get("Execproxy-Error") == "" {
			t.Errorf("a body of 3 MiB and a byte, to be signed: %s, want 413 of ours", resp.Status)
		}
	})
}

// TestHeaderPolicy: what a client must not decide does not pass.
func TestHeaderPolicy(t *testing.T) {
	ways(t, func(t *testing.T, h *home, config object) {
		u := newUpstream(t)
		d := h.open(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: h.lock()})
		client := d.client(t, u.url)
		req, err := http.NewRequest(http.MethodGet, u.url+"/policy", nil)
		must(t, err)
		for name, value := range map[string]string{
			"X-Amz-Date": "20200101T000000Z", "X-Amz-Security-Token": "forged", "X-Amz-Content-Sha256": "forged",
			"X-Forwarded-For": "10.0.0.1", "Via": "1.1 forged", "X-Remote-User": "system:admin", "X_Remote_User": "system:admin",
			"Signature": "forged", "Signature-Input": "forged",
			"Impersonate-User": "bob", "Accept": "application/json",
		} {
			req.Header.Set(name, value)
		}
		resp, err := client.Do(req)
		must(t, err)
		_ = resp.Body.Close()
		s := u.last(t, "/policy")
		for name, values := range s.header {
			for _, v := range values {
				if strings.Contains(v, "forged") || strings.Contains(v, "system:admin") || strings.Contains(v, "10.0.0.1") || strings.HasPrefix(v, "20200101") {
					t.Errorf("%s: %s passed", name, v)
				}
			}
		}
		if s.header.Get("Impersonate-User") != "bob" || s.header.Get("Accept") != "application/json" {
			t.Errorf("what a client may say did not pass: %v", s.header)
		}
		for method, want := range map[string]int{http.MethodTrace: 405, http.MethodConnect: 405} {
			conn, r := d.dial(t, u.url)
			host := strings.TrimPrefix(u.url, "https://")
			target := "/"
			if method == http.MethodConnect {
				target = "169.254.169.254:80"
			}
			_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\n\r\n", method, target, host)
			must(t, err)
			resp, err := http.ReadResponse(r, nil)
			must(t, err)
			if resp.StatusCode != want {
				t.Errorf("%s is answered %s, want %d", method, resp.Status, want)
			}
		}
		// An absolute target and a foreign Host reach the pinned server or nobody.
		conn, r := d.dial(t, u.url)
		_, err = fmt.Fprintf(conn, "GET http://169.254.169.254/latest/meta-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n")
		must(t, err)
		resp, err = http.ReadResponse(r, nil)
		must(t, err)
		if resp.StatusCode == http.StatusOK {
			if s := u.last(t, ""); !strings.HasSuffix(s.target, "/latest/meta-data") || s.host != strings.TrimPrefix(u.url, "https://") {
				t.Errorf("a foreign absolute target arrived as %s at host %s", s.target, s.host)
			}
		} else if resp.StatusCode >= 500 {
			t.Errorf("a foreign absolute target is answered %s", resp.Status)
		}
	})
}

// TestBrowserIsRefused: a page that a browser on this machine opened.
func TestBrowserIsRefused(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	s := h.serve(upstreamFlags(u.url, cert, key)...)
	client := s.client(t)
	get(t, client, s.listen+"/version")
	before := u.count()
	for name, value := range map[string]string{"Host": "evil.example.com", "Origin": "https://evil.example.com", "Referer": "https://evil.example.com/page"} {
		req, err := http.NewRequest(http.MethodGet, s.listen+"/api", nil)
		must(t, err)
		if req.Header.Set(name, value); name == "Host" {
			req.Host = value
		}
		resp, err := client.Do(req)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s is answered %s, want 403", name, value, resp.Status)
		}
	}
	if u.count() != before {
		t.Error("a refused request reached the upstream")
	}
}

// TestNoCertificateNoService: TLS alone opens nothing.
func TestNoCertificateNoService(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	d := h.open(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: mtls(cert, key), lock: h.lock()})
	get(t, d.client(t, u.url), u.url+"/version")
	before := u.count()
	client := d.client(t, u.url)
	client.Transport.(*http.Transport).TLSClientConfig.Certificates = nil
	resp, err := client.Get(u.url + "/version")
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(string(body), `"kind":"Status"`) || resp.Header.Get("Execproxy-Error") == "" {
		t.Errorf("without the session's certificate: %s %v %s; want 401 and a Status of ours", resp.Status, resp.Header, body)
	}
	if u.count() != before {
		t.Error("the refused request reached the upstream")
	}
}
