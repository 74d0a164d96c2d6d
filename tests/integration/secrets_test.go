//go:build linux

package integration

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"crypto/ecdsa"
	"crypto/x509"
)

// canaries are secrets in all the shapes that they could leak in.
type canaries map[string]string

func (c canaries) add(name string, secret []byte) {
	c[name] = string(secret)
	c[name+", base64"] = strings.TrimRight(base64.StdEncoding.EncodeToString(secret), "=")
	c[name+", base64 of base64"] = strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString(secret))), "=")
	c[name+", hex"] = hex.EncodeToString(secret)
	c[name+", HEX"] = strings.ToUpper(hex.EncodeToString(secret))
	c[name+", query"] = url.QueryEscape(string(secret))
}

// addKey adds a PEM key: its file, the lines of it and its private number.
func (c canaries) addKey(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	c.add("key file", data)
	b, _ := pem.Decode(data)
	c.add("key DER", b.Bytes)
	for i, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if !strings.HasPrefix(line, "-") {
			c[fmt.Sprintf("key line %d", i)] = line
		}
	}
	key, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	must(t, err)
	number, err := key.(*ecdsa.PrivateKey).Bytes()
	must(t, err)
	c.add("private number", number)
}

// absent fails the test where any canary is in text.
func (c canaries) absent(t *testing.T, where, text string) {
	t.Helper()
	for name, secret := range c {
		if strings.Contains(text, secret) {
			t.Errorf("%s contains the %s", where, name)
		}
	}
}

// absentAround looks at everything that a home's proxy shows of itself, with
// the named files of its directory in /proc.
func (c canaries) absentAround(t *testing.T, h *home, files ...string) {
	t.Helper()
	left := processes(h.dir)
	if len(left) == 0 {
		t.Error("no proxy runs: nothing to look at")
	}
	for pid := range left {
		for _, name := range files {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			if err != nil && (name == "cmdline" || !os.IsPermission(err)) {
				t.Error(err)
			}
			c.absent(t, fmt.Sprintf("/proc/PID/%s of %s", name, left[pid]), string(data))
		}
	}
	c.absent(t, "status", h.execproxy("status").ok(t))
	c.absent(t, "status -o json", h.execproxy("status", "-o", "json").ok(t))
	logged := 0
	_ = filepath.WalkDir(h.dir, func(path string, d os.DirEntry, err error) error {
		below := strings.HasPrefix(path, h.path("state")) || strings.HasPrefix(path, h.path("r")) || strings.HasPrefix(path, h.path("tmp"))
		if err != nil || !d.Type().IsRegular() || !below {
			return err
		}
		data, err := os.ReadFile(path)
		must(t, err)
		c.absent(t, path, string(data))
		if strings.HasSuffix(path, ".log") {
			logged += len(data)
		}
		return nil
	})
	if logged == 0 {
		t.Error("the proxy has logged nothing at level debug: nothing to look at")
	}
}

// exercise sends good and bad requests, so that there is something to log, and
// returns all that the client got to see.
func exercise(t *testing.T, d *document, server string) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(d.text)
	client := d.client(t, server)
	for _, r := range []struct{ method, target, body string }{
		{"GET", "/version", ""},
		{"GET", "/api/v1/namespaces/default/configmaps?limit=1", ""},
		{"POST", "/api/v1/namespaces/default/configmaps", "{not json"},
		{"TRACE", "/", ""},
		{"GET", "/no/such/path", ""},
	} {
		req, err := http.NewRequest(r.method, server, strings.NewReader(r.body))
		must(t, err)
		u, err := url.Parse(server)
		must(t, err)
		req.URL.Opaque = "//" + u.Host + r.target
		resp, err := client.Do(req)
		if err != nil {
			fmt.Fprintln(&out, err)
			continue
		}
		_ = resp.Header.Write(&out)
		_, _ = io.Copy(&out, resp.Body)
		_ = resp.Body.Close()
	}
	// A foreign Authorization is refused, with an explanation.
	req, err := http.NewRequest(http.MethodGet, server+"/version", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer of-somebody-else")
	resp, err := client.Do(req)
	must(t, err)
	_, _ = io.Copy(&out, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a foreign Authorization is answered %s, want 401", resp.Status)
	}
	return out.String()
}

func TestNoSecretOfACertificate(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	c := canaries{}
	c.addKey(t, key)
	config := mtls(cert, key)
	config["logLevel"] = "debug"
	server := suite.cluster.API.URL
	l := h.lock()
	r := h.exec(plugin{server: server, ca: suite.cluster.CA.PEM, config: config, lock: l})
	r.ok(t)
	c.absent(t, "stderr of exec", r.stderr)
	d := decode(t, r.stdout)
	upstreamCert, err := os.ReadFile(cert)
	must(t, err)
	if strings.Contains(d.Status.ClientCertificateData, strings.TrimSpace(string(upstreamCert))) {
		t.Error("the client got the certificate of the upstream")
	}
	if d.Status.Token != nil {
		t.Error("the client got a token")
	}
	c.absent(t, "what the client got", exercise(t, d, server))
	c.absentAround(t, h, "cmdline", "environ")

	// What the client got must open nothing but the proxy.
	straight := &http.Client{Transport: &http.Transport{TLSClientConfig: d.tls(t, server)}}
	straight.Transport.(*http.Transport).TLSClientConfig.RootCAs = suite.cluster.CA.Pool()
	if resp, err := straight.Get(server + "/api/v1/namespaces/default/configmaps"); err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("the session's pair is accepted by the API server itself: %s", resp.Status)
		}
	}
}

const (
	awsKeyID  = "AKIAEXECPROXYTESTING"
	awsSecret = "canarySecret/ofTheUpstream+0123456789abc"
	awsToken  = "canaryToken//ofTheUpstream++FQoGZXIvYXdzEBYaDHqa0AP"
)

// sharedCredentials points the home's AWS SDK at a file.
func (h *home) sharedCredentials() {
	h.env["AWS_SHARED_CREDENTIALS_FILE"] = h.file("credentials", fmt.Sprintf(
		"[default]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n", awsKeyID, awsSecret, awsToken))
	h.env["AWS_CONFIG_FILE"] = h.path("none")
}

func sigv4Config() object {
	return object{"auth": "sigv4", "awsRegion": "eu-central-1", "awsService": "execute-api"}
}

func TestNoSecretOfSigV4(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"file", "environment"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			h, u := newHome(t), newUpstream(t)
			if h.sharedCredentials(); from == "environment" {
				h.env["AWS_ACCESS_KEY_ID"], h.env["AWS_SECRET_ACCESS_KEY"], h.env["AWS_SESSION_TOKEN"] = awsKeyID, awsSecret, awsToken
			}
			c := canaries{}
			c.add("AWS secret", []byte(awsSecret))
			c.add("session token", []byte(awsToken))
			config := sigv4Config()
			config["logLevel"] = "debug"
			r := h.exec(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: h.lock()})
			r.ok(t)
			c.absent(t, "stderr of exec", r.stderr)
			c.absent(t, "what the client got", exercise(t, decode(t, r.stdout), u.url))
			if from == "environment" {
				// What the user put there is there; nobody but root can look (TestMemoryIsClosed).
				c.absentAround(t, h, "cmdline")
			} else {
				c.absentAround(t, h, "cmdline", "environ")
			}
			s := u.last(t, "/version")
			if s.header.Get("X-Amz-Security-Token") != awsToken || !strings.Contains(s.header.Get("Authorization"), awsKeyID) {
				t.Errorf("the request reached the upstream without its signature: %v", s.header)
			}
		})
	}
}

// TestNoSecretOfHeaders: a static header from a file.
func TestNoSecretOfHeaders(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	const secret = "canary-of-a-static-header-4711"
	c := canaries{}
	c.add("header", []byte(secret))
	config := object{"auth": "headers", "headers": []string{"X-Api-Key=@" + h.file("header", secret+"\n")}, "logLevel": "debug"}
	r := h.exec(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: h.lock()})
	r.ok(t)
	c.absent(t, "what the client got", exercise(t, decode(t, r.stdout), u.url))
	c.absentAround(t, h, "cmdline", "environ")
	if got := u.last(t, "/version").header.Get("X-Api-Key"); got != secret {
		t.Errorf("the upstream got X-Api-Key %q", got)
	}
}

// TestNoSecretOfServe: in the foreground, with all its output at level debug.
func TestNoSecretOfServe(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	c := canaries{}
	c.addKey(t, key)
	s := h.serve("--server", suite.cluster.API.URL, "--certificate-authority", suite.cluster.Dir+"/ca.crt",
		"--auth", "mtls", "--cert", cert, "--key", key, "--log-level", "debug")
	h.kubectl(s.kubeconfig, "get", "namespaces").ok(t)
	out, err := os.ReadFile(s.kubeconfig)
	must(t, err)
	c.absent(t, "--kubeconfig-out", string(out))
	s.signal(syscall.SIGTERM)
	s.wait()
	if s.stdout.String() != "" {
		t.Errorf("stdout of serve: %s", s.stdout)
	}
	if s.stderr.String() == "" {
		t.Error("serve logs nothing at level debug")
	}
	c.absent(t, "stderr of serve", s.stderr.String())
}
