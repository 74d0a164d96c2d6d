//go:build linux

package integration

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

// A picky server wants a signature for each request: it takes one on each
// connection, requires a client certificate, and resumes no session.
type picky struct {
	url  string
	seen atomic.Int64
}

func newPicky(t *testing.T) *picky {
	t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "picky", Hosts: []string{"127.0.0.1", "localhost"}})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	p := &picky{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.seen.Add(1)
		fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: suite.cluster.CA.Pool(),
		SessionTicketsDisabled: true,
	}
	s.Config.SetKeepAlivesEnabled(false)
	s.StartTLS()
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

// certified makes a key in a home and gives it a certificate of the cluster's
// authority, in a file. It returns the flags that name both.
func (h *home) certified(key string, args ...string) []string {
	h.t.Helper()
	flags := append([]string{"--key", key}, args...)
	h.execproxy(append([]string{"key", "create"}, flags...)...).ok(h.t)
	return append(flags, "--cert", h.certify(flags...))
}

func (h *home) certify(flags ...string) string {
	h.t.Helper()
	csr := h.execproxy(append([]string{"key", "csr", "--user", "jane", "--group", "dev"}, flags...)...).ok(h.t)
	public, subject := parseRequest(h.t, csr)
	cert, err := suite.cluster.CA.Certify(public, pki.Options{CommonName: subject.CommonName, Organizations: subject.Organization})
	must(h.t, err)
	h.replace("me.crt", string(cert))
	return h.path("me.crt")
}

func parseRequest(t *testing.T, text string) (crypto.PublicKey, pkix.Name) {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("no PEM: %q", text)
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	must(t, err)
	must(t, r.CheckSignature())
	return r.PublicKey, r.Subject
}

// faulty is a proxy in front of a picky server.
type faulty struct {
	t      *testing.T
	h      *home
	server *server
	client *http.Client

	shim   *token.Shim // counts logins; nil where there are none
	logins int         // up to the last fault
}

// fault logs a line for `make faults`.
func (f *faulty) fault(name, message string, recovery time.Duration) {
	f.t.Helper()
	tries := "none, it has no PIN"
	if f.shim != nil {
		n, err := f.shim.Calls("C_Login")
		must(f.t, err)
		tries, f.logins = strconv.Itoa(n-f.logins), n
	}
	if message == "" {
		message = "none: the request was served"
	}
	f.t.Logf("FAULT %s\n  recovery:  %v\n  PIN tries: %s\n  message:   %s", name, recovery.Round(time.Millisecond), tries, message)
}

func (h *home) faulty(flags []string) *faulty {
	h.t.Helper()
	return h.through(newPicky(h.t).url, flags)
}

func (f *faulty) get() (code int, body string) {
	f.t.Helper()
	r, err := f.client.Get(f.server.listen + "/version")
	must(f.t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must(f.t, err)
	return r.StatusCode, string(b)
}

// works makes requests until they go through, and tells how long that took.
func (f *faulty) works() time.Duration {
	f.t.Helper()
	begin := time.Now()
	eventually(f.t, patience, func() error {
		if code, body := f.get(); code != http.StatusOK || body != "jane" {
			return fmt.Errorf("%d: %s", code, body)
		}
		return nil
	})
	return time.Since(begin)
}

// fails makes a request that cannot be signed: 503, soon, with what is wrong.
func (f *faulty) fails(within time.Duration, want ...string) (body string) {
	f.t.Helper()
	begin := time.Now()
	code, body := f.get()
	if code != http.StatusServiceUnavailable {
		f.t.Errorf("%d: %s; want 503", code, body)
	}
	if took := time.Since(begin); took > within {
		f.t.Errorf("the error took %v, want %v at most", took, within)
	}
	for _, w := range want {
		if !strings.Contains(body, w) {
			f.t.Errorf("%q does not say %q", body, w)
		}
	}
	if strings.Contains(body, "pin-2718") {
		f.t.Errorf("the PIN stands in %q", body)
	}
	var status struct{ Message string }
	must(f.t, json.Unmarshal([]byte(body), &status))
	return status.Message
}

// TestTokenGoesAndComes: p11-kit's server is killed and started again, the tokens'
// directory is taken away and given back.
func TestTokenGoesAndComes(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	hsm, tok := h.softHSM("execproxy", "pin-2718")
	kit := h.p11Kit(tok)
	shim := h.shim(kit.Module)
	pin := h.file("pin", "pin-2718\n")
	f := h.faulty(h.certified("pkcs11:token=execproxy;object=me", "--pkcs11-module", shim.Module, "--pin-source", pin))
	f.works()
	f.counting(shim)
	kit.Kill()
	message := f.fails(6*time.Second, "token execproxy")
	must(t, kit.Start(t.Context()))
	f.fault("p11-kit server killed and restarted", message, f.works())
	if p := h.proxy(); p.Key.Reopened == 0 || p.Key.Failures == 0 {
		t.Errorf("status: %+v; want the key reopened, and a failure", p.Key)
	}

	kit.Kill()
	must(t, hsm.Hide())
	must(t, kit.Start(t.Context()))
	message = f.fails(6*time.Second, "private key could not sign")
	must(t, hsm.Show())
	kit.Kill()
	must(t, kit.Start(t.Context()))
	f.fault("token directory renamed away and back", message, f.works())
}

// TestModuleFails: what a vendor's library does wrong costs a request an error at
// most, and the proxy nothing.
func TestModuleFails(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	hsm, _ := h.softHSM("execproxy", "pin-2718")
	shim := h.shim(hsm.Module)
	pin := h.file("pin", "pin-2718\n")
	f := h.faulty(h.certified("pkcs11:token=execproxy;object=me", "--pkcs11-module", shim.Module, "--pin-source", pin))
	f.works()
	f.counting(shim)
	pid := h.proxy().PID
	for _, tc := range []struct {
		name, function string
		rule           token.Rule
	}{
		{"all sessions closed underneath", "C_SignInit", token.Once(token.CloseSessions)},
		{"module crashes once", "C_Sign", token.Once(token.Crash)},
		{"module prints to stdout", "C_Sign", token.Once(token.Print)},
		{"CKR_DEVICE_REMOVED once", "C_SignInit", token.Once(token.Return(0x32))},
	} {
		must(t, shim.Set(tc.function, tc.rule))
		begin := time.Now()
		if code, body := f.get(); code != http.StatusOK {
			t.Errorf("%s: %d: %s; want one more try, that works", tc.name, code, body)
		}
		f.fault(tc.name, "", time.Since(begin))
	}
	must(t, shim.Set("C_Sign", token.Crash))
	message := f.fails(6*time.Second, "ended")
	must(t, shim.Set("C_Sign", ""))
	f.fault("module crashes each time, then is mended", message, f.works())

	must(t, shim.Set("C_Sign", token.Hang))
	message = f.fails(9*time.Second, "5s")
	must(t, shim.Set("C_Sign", ""))
	f.fault("module hangs, then is mended", message, f.works())

	if p := h.proxy(); p.PID != pid || p.Key.Reopened < 4 {
		t.Errorf("status: %+v; want the same proxy %d, and the key reopened each time", p, pid)
	}
	f.server.signal(syscall.SIGTERM)
	if code := f.server.wait(); code != 0 {
		t.Errorf("serve ended with %d: %s", code, f.server.stderr)
	}
}

// counting has logins counted from now on.
func (f *faulty) counting(s *token.Shim) {
	f.t.Helper()
	n, err := s.Calls("C_Login")
	must(f.t, err)
	f.shim, f.logins = s, n
}

// TestTPMRestarts: swtpm is killed and comes back with the same state.
func TestTPMRestarts(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	tpm := h.swtpm()
	f := h.faulty(h.certified("tpm:"+h.path("tpm.pem"), "--tpm-device", tpm.Socket))
	f.works()
	tpm.Kill()
	message := f.fails(6*time.Second, "tpm:")
	must(t, tpm.Start(t.Context()))
	f.fault("swtpm killed and restarted", message, f.works())
	if p := h.proxy(); p.Key.Home != "tpm" || p.Key.Reopened == 0 {
		t.Errorf("status: %+v; want the key reopened", p.Key)
	}
}

// TestWrongPIN: a wrong PIN is tried once, whoever starts how many proxies.
func TestWrongPIN(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	hsm, _ := h.softHSM("execproxy", "pin-2718")
	shim := h.shim(hsm.Module)
	pin := h.file("pin", "pin-2718\n")
	flags := h.certified("pkcs11:token=execproxy;object=me", "--pkcs11-module", shim.Module, "--pin-source", pin)
	cert, helper := h.user("helper", "dev")
	kc := h.proxied(append([]string{"--kubeconfig", h.kubeconfig("plain", suite.cluster.API.URL, cert, helper), "--auth", "mtls", "--renew", "off"}, flags...)...)
	logins := func() int {
		t.Helper()
		n, err := shim.Calls("C_Login")
		must(t, err)
		return n
	}
	h.file("pin", "bad-2718\n")
	before, message := logins(), ""
	for i := range 3 {
		r := h.kubectl(kc, "get", "namespaces")
		if r.code == 0 || !strings.Contains(r.stderr, "PIN") || strings.Contains(r.stderr, "bad-2718") {
			t.Errorf("call %d with a wrong PIN: %s", i, r)
		}
		if i == 0 {
			message = lastLine(r.stderr, "PIN")
		}
	}
	// Without a terminal nobody else was asked; each kubectl runs the plugin some times.
	wrong := logins() - before
	if wrong != 1 {
		t.Errorf("%d logins with a wrong PIN, want 1", wrong)
	}
	h.file("pin.new", "pin-2718\n")
	must(t, os.Rename(h.path("pin.new"), h.path("pin")))
	begin := time.Now()
	if got := whoami(t, h, kc); got != "jane" {
		t.Errorf("with the right PIN: %q", got)
	}
	t.Logf("FAULT wrong PIN in the file, three kubectl, then the right one\n  recovery:  %v\n  PIN tries: %d\n  message:   %s", time.Since(begin).Round(time.Millisecond), wrong, message)

	// A locked one is not tried at all.
	h.execproxy("stop", "--all").ok(t)
	must(t, shim.Set("C_GetTokenInfo", token.Flags(0x40000)))
	before = logins()
	if r := h.kubectl(kc, "get", "namespaces"); r.code == 0 || !strings.Contains(r.stderr, "locked") {
		t.Errorf("with a locked PIN: %s", r)
	} else {
		message = lastLine(r.stderr, "locked")
	}
	locked := logins() - before
	if locked != 0 {
		t.Errorf("%d logins with a locked PIN, want 0", locked)
	}
	must(t, shim.Set("C_GetTokenInfo", ""))
	begin = time.Now()
	if got := whoami(t, h, kc); got != "jane" {
		t.Errorf("with the PIN unlocked: %q", got)
	}
	t.Logf("FAULT locked PIN, then unlocked\n  recovery:  %v\n  PIN tries: %d\n  message:   %s", time.Since(begin).Round(time.Millisecond), locked, message)
}

// lastLine is the last line of text that says word.
func lastLine(text, word string) (found string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) && !strings.Contains(line, "memcache.go") {
			found = strings.TrimSpace(line)
		}
	}
	return found
}

// TestKeyMessages: what is wrong, and what to do, on one line; nothing is started.
func TestKeyMessages(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	hsm, _ := h.softHSM("twice", "pin-2718")
	_, err := hsm.InitToken(t.Context(), "twice", "pin-2718")
	must(t, err)
	_, err = hsm.InitToken(t.Context(), "one", "pin-2718")
	must(t, err)
	tpm := h.swtpm()
	pin := h.file("pin", "pin-2718\n")
	open := h.file("open", "pin-2718\n")
	must(t, os.Chmod(open, 0o644))
	soft := []string{"--pkcs11-module", hsm.Module, "--pin-source", pin}
	for _, tc := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"module path wrong", []string{"--key", "pkcs11:token=one;object=me", "--pkcs11-module", "/no/such.so", "--pin-source", pin}, 1, []string{"/no/such.so", "module-path"}},
		{"no PKCS#11 library", []string{"--key", "pkcs11:token=one;object=me", "--pkcs11-module", "/lib/x86_64-linux-gnu/libc.so.6", "--pin-source", pin}, 1, []string{"libc.so.6"}},
		{"key missing", append([]string{"--key", "pkcs11:token=one;object=me"}, soft...), 1, []string{"object=me", "execproxy key create"}},
		{"token missing", append([]string{"--key", "pkcs11:token=none;object=me"}, soft...), 1, []string{"none"}},
		{"two tokens with one label", append([]string{"--key", "pkcs11:token=twice;object=me"}, soft...), 1, []string{"twice", "serial="}},
		{"no PIN", []string{"--key", "pkcs11:token=one;object=me", "--pkcs11-module", hsm.Module}, 1, []string{"PIN", "pin-source"}},
		{"PIN for all to read", []string{"--key", "pkcs11:token=one;object=me", "--pkcs11-module", hsm.Module, "--pin-source", open}, 1, []string{open, "chmod 600"}},
		{"no PIN file", []string{"--key", "pkcs11:token=one;object=me", "--pkcs11-module", hsm.Module, "--pin-source", "/no/pin"}, 1, []string{"/no/pin"}},
		{"malformed URI", []string{"--key", "pkcs11:token"}, 2, []string{"--key"}},
		{"no such device", []string{"--key", "tpm:" + h.path("k.pem"), "--tpm-device", "/no/tpm"}, 1, []string{h.path("k.pem")}},
		{"handle empty", []string{"--key", "tpm:handle=0x81010005", "--tpm-device", tpm.Socket}, 1, []string{"0x81010005", "execproxy key create"}},
		{"no persistent handle", []string{"--key", "tpm:handle=0x80000001"}, 2, []string{"--key", "0x81000000"}},
		{"file missing", []string{"--key", h.path("none.pem")}, 1, []string{"none.pem"}},
	} {
		r := h.execproxy(append([]string{"key", "show"}, tc.args...)...)
		if r.code != tc.code || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || strings.Contains(r.stderr, "pin-2718") {
			t.Errorf("%s: %s; want exit code %d and one line", tc.name, r, tc.code)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(r.stderr, w) {
				t.Errorf("%s: %q does not say %q", tc.name, r.stderr, w)
			}
		}
		t.Logf("FAULT %s\n  message:   %s", tc.name, strings.TrimSpace(r.stderr))
	}
}

// TestWithoutCGO: a build without cgo says that it has no PKCS#11, and does the rest.
func TestWithoutCGO(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.withoutCGO()
	r := h.execproxy("key", "show", "--key", "pkcs11:token=one;object=me", "--pkcs11-module", "/lib/x.so", "--pin-source", h.file("pin", "1\n"))
	if r.code != 1 || !strings.Contains(r.stderr, "cgo") || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("PKCS#11 without cgo: %s", r)
	}
	f := h.faulty(h.certified("tpm:"+h.path("tpm.pem"), "--tpm-device", h.swtpm().Socket))
	f.works()
}

// TestTPMPasswordMissing: whether a key has a password is learnt once. A TPM counts
// that as a wrong one, and locks itself after some.
func TestTPMPasswordMissing(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	tpm := h.swtpm()
	args := []string{"--key", "tpm:handle=0x81000120", "--tpm-device", tpm.Socket}
	secret := []string{"--pin-source", h.file("password", "hunter2\n")}
	h.execproxy(append(append([]string{"key", "create"}, args...), secret...)...).ok(t)
	for range 4 {
		r := h.execproxy(append([]string{"key", "show"}, args...)...)
		if r.code != 1 || !strings.Contains(r.stderr, "--pin-source") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("without the password: %s", r)
		}
	}
	out, err := tpm.Tool(t.Context(), "tpm2_getcap", "properties-variable")
	must(t, err)
	if !regexp.MustCompile(`TPM2_PT_LOCKOUT_COUNTER: 0x1\b`).Match(out) {
		t.Errorf("the TPM has counted other than one wrong password:\n%s", out)
	}
	h.execproxy(append(append([]string{"key", "show"}, args...), secret...)...).ok(t)
}
