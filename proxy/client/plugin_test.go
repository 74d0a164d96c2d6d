package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// Somebody whom the plugin left behind has its pipes. Nobody waits for it.
func TestPipesLeftOpen(t *testing.T) {
	b := newBench(t)
	a := mustAuthority(t)
	b.listen(a, a, nil)
	b.answer(a.status(b.socket, time.Now().Add(time.Hour)))
	c := b.client("leave")
	b.get(c, "/")
	plugin := c.present().plugin
	<-plugin.done
	defer killGroup(plugin.cmd)
	began := time.Now()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
}

func TestCloseWhileExecuting(t *testing.T) {
	b := newBench(t)
	stderr := &signalWriter{written: make(chan struct{})}
	c := b.client("hang", func(o *Options) { o.Stderr = stderr }, env("STDERR=here"))
	started := make(chan error, 1)
	go func() { started <- c.Start(t.Context()) }()
	<-stderr.written
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-started; !errors.Is(err, ErrClosed) {
		t.Errorf("Start returned %v", err)
	}
}

// signalWriter tells of the first write.
type signalWriter struct {
	once    sync.Once
	written chan struct{}
	bytes.Buffer
}

func (s *signalWriter) Write(p []byte) (int, error) {
	n, err := s.Buffer.Write(p)
	s.once.Do(func() { close(s.written) })
	return n, err
}

func TestPluginFails(t *testing.T) {
	const canary = "s3cr3t-canary"
	a := mustAuthority(t)
	good := a.status("/s", time.Now().Add(time.Hour))
	document := func(version string, change func(s *clientauthentication.Status)) string {
		s, p := *good, *good.ProxyConfig
		s.ProxyConfig = &p
		change(&s)
		data, err := json.Marshal(&clientauthentication.ExecCredential{APIVersion: version, Kind: clientauthentication.Kind, Status: &s})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, f := range []struct {
		name, stdout, stderr string
		says                 []string
	}{
		{"nothing", "", "", []string{"stdout is empty"}},
		{"nothing but a reason", "", "execproxy: key file k.pem is missing", []string{"exit status 1", "execproxy: key file k.pem is missing"}},
		{"the last reason", "", "warning\n \x1b[31mexecproxy:\x07 cause\x1b[0m", []string{"exit status 1", ": [31mexecproxy: cause[0m"}},
		{"garbage", "Hello " + canary, "", []string{"not JSON"}},
		{"garbage and a reason", "Hello " + canary, "cause", []string{"exit status 1: cause"}},
		{"half a document", `{"status":{"token":"` + canary, "", []string{"middle"}},
		{"other version", document(clientauthentication.V1Beta1, func(s *clientauthentication.Status) {}), "", []string{"asked in client.authentication.k8s.io/v1 and answered in client.authentication.k8s.io/v1beta1"}},
		{"no proxy", document(clientauthentication.V1, func(s *clientauthentication.Status) { s.ProxyConfig = nil }), "", []string{"does not speak the exec-proxy protocol"}},
		{"no CA", document(clientauthentication.V1, func(s *clientauthentication.Status) { s.ProxyConfig.CertificateAuthorityData = []byte("x") }), "", []string{"no PEM certificate"}},
		{"no pair", document(clientauthentication.V1, func(s *clientauthentication.Status) { s.ClientCertificateData = s.ClientKeyData }), "", []string{"clientCertificateData"}},
	} {
		t.Run(f.name, func(t *testing.T) {
			b := newBench(t)
			c := b.client("fail", env("STDOUT="+f.stdout, "STDERR="+f.stderr))
			err := c.Start(t.Context())
			mustSay(t, err, append(f.says, "plugin")...)
			if strings.Contains(err.Error(), canary) {
				t.Errorf("the error repeats stdout: %q", err)
			}
			var failed *PluginError
			if !errors.As(err, &failed) || failed.Command != c.o.Command {
				t.Errorf("%v is not a PluginError", err)
			}
			if f.stderr != "" {
				if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
					t.Errorf("%v has no exit status", err)
				}
			}
			if (f.name == "no proxy") != errors.Is(err, ErrNoProxy) {
				t.Errorf("ErrNoProxy: %v", err)
			}
			// Not again at once.
			mustSay(t, c.Start(t.Context()), append(f.says, "next attempt in")...)
			b.executions(1)
		})
	}
}

func TestPluginHangs(t *testing.T) {
	b := newBench(t)
	c := b.client("hang", func(o *Options) { o.Timeout = 300 * time.Millisecond }, env("STDERR=waiting for a touch"))
	err := c.Start(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not DeadlineExceeded", err)
	}
	mustSay(t, err, "no answer within 300ms", "waiting for a touch")
	b.executions(1)
	if err := c.Close(); err != nil { // at once: the process is gone
		t.Error(err)
	}
}

// After a failure the plugin rests longer each time, and a success ends that.
func TestRest(t *testing.T) {
	b := newBench(t)
	c := b.client("fail", env("STDERR=cause"))
	c.mu.Lock()
	defer c.mu.Unlock()
	last := time.Duration(0)
	for range 20 {
		c.rest(errors.New("x"))
		rest := time.Until(c.retry)
		if rest > longestRest || rest < min(2*last-firstRest/2, longestRest-time.Second) {
			t.Errorf("rest of %v after %v", rest, last)
		}
		last = rest
	}
	c.mu.Unlock()
	c.well()
	c.mu.Lock()
	if c.fails != 0 || !c.retry.IsZero() {
		t.Error("not forgotten")
	}
}

func TestPluginMissing(t *testing.T) {
	b := newBench(t)
	for _, command := range []string{"no-such-plugin", filepath.Join(b.dir, "none")} {
		c := b.client("", func(o *Options) { o.Command = command })
		mustSay(t, c.Start(t.Context()), command, "install it or give its full path")
	}
}

// What the plugin writes to stderr is passed on, to the last.
func TestStderr(t *testing.T) {
	b := newBench(t)
	var stderr bytes.Buffer
	c := b.client("fail", func(o *Options) { o.Stderr = &stderr }, env("STDERR=one\ntwo"))
	mustSay(t, c.Start(t.Context()), "two")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if stderr.String() != "one\ntwo\n" {
		t.Errorf("stderr %q", &stderr)
	}
}

func TestTail(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "",
		"\n\n":                           "",
		"a\nb\n\n \n":                    "b",
		"a\xff\x00b\r\n":                 "ab",
		strings.Repeat("x", 3*tailSize):  strings.Repeat("x", longestLine) + "…",
		strings.Repeat("€\n", tailSize):  "€",
		strings.Repeat("€", longestLine): strings.Repeat("€", longestLine/3) + "…",
	} {
		var out bytes.Buffer
		var tl tail
		tl.copy(&out, strings.NewReader(in))
		if got := tl.line(); got != want {
			t.Errorf("%.20q: %q, want %q", in, got, want)
		}
		if out.String() != in {
			t.Errorf("%.20q: passed on %d bytes of %d", in, out.Len(), len(in))
		}
	}
}
