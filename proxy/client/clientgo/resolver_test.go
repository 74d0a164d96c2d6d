package clientgo

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/execproxy/execproxy/proxy/client"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

var codecs = serializer.NewCodecFactory(apiruntime.NewScheme()).WithoutConversion()

func TestResolve(t *testing.T) {
	b := newBench(t)
	config := b.config("serve")
	config.UserAgent, config.QPS, config.Burst, config.Timeout = "controller/1", 7, 9, time.Minute
	config.Impersonate = rest.ImpersonationConfig{UserName: "bob", Groups: []string{"readers"}}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("X-Wrapped", "yes")
			return rt.RoundTrip(r)
		})
	})
	before := config.String() // which changes ExecProvider.Config
	res, err := b.resolver().Resolve(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if config.String() != before {
		t.Error("the caller's configuration was changed")
	}
	if c := res.Config; c.ExecProvider != nil || c.Host != config.Host || c.QPS != 7 || c.Burst != 9 || c.Timeout != time.Minute || len(c.CAData) > 0 {
		t.Errorf("resolved to %v", c)
	}
	check := func(way string, s *seen) {
		t.Helper()
		if s.Proto != "HTTP/2.0" || s.Host != "k8s.example:6443" || s.Extra != "last" ||
			s.Header.Get("User-Agent") != "controller/1" || s.Header.Get("Impersonate-User") != "bob" || s.Header.Get("X-Wrapped") != "yes" {
			t.Errorf("%s: the proxy saw %+v", way, s)
		}
	}
	s := mustGet(t, res.HTTPClient, "https://k8s.example:6443/version?a=b")
	check("HTTPClient", s)
	if s.Path != "/version?a=b" {
		t.Errorf("the path was %q", s.Path)
	}
	info, err := clientauthentication.DecodeInfo([]byte(s.Info))
	if err != nil {
		t.Fatal(err)
	}
	if k := info.Spec.Cluster; k == nil || k.Server != "https://k8s.example:6443" || string(k.CertificateAuthorityData) != "the cluster's CA" ||
		string(k.Config) != `{"audience":"x"}` || info.Spec.Interactive || info.Spec.LockFilePath == "" {
		t.Errorf("the plugin was told %s", s.Info)
	}

	// Constructors that take a rest.Config alone make their own client of it.
	c := rest.CopyConfig(res.Config)
	c.GroupVersion, c.NegotiatedSerializer = &schema.GroupVersion{Version: "v1"}, codecs
	rc, err := rest.UnversionedRESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = get(rc.Client, "https://k8s.example:6443/"); err != nil {
		t.Fatal(err)
	}
	check("RESTClient", s)
	b.executions(1)
	b.m.want(t, 0, map[string]int{"0 no_error": 1})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A cluster that the plugin is not told of is proved all the same.
func TestWithoutClusterInfo(t *testing.T) {
	b := newBench(t)
	config := b.config("serve")
	config.Host = "k8s.example:6443" // as client-go takes it, too
	config.ExecProvider.ProvideClusterInfo = false
	config.ExecProvider.APIVersion, config.ExecProvider.InteractiveMode = clientauthentication.V1Beta1, ""
	res, err := b.resolver().Resolve(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s := mustGet(t, res.HTTPClient, res.Config.Host+"/")
	if info, err := clientauthentication.DecodeInfo([]byte(s.Info)); err != nil || info.Spec.Cluster != nil || info.APIVersion != clientauthentication.V1Beta1 {
		t.Errorf("the plugin was told %s, %v", s.Info, err)
	}
	if _, err := get(res.HTTPClient, "https://other.example/"); err == nil {
		t.Error("a request to another host was sent")
	}
}

// One transport and one plugin for what is the same plugin and cluster, and another one for
// what is not.
func TestShared(t *testing.T) {
	b := newBench(t)
	r := b.resolver()
	one, err := r.Resolve(t.Context(), b.config("serve"))
	if err != nil {
		t.Fatal(err)
	}
	same := b.config("serve")
	slices.Reverse(same.ExecProvider.Env[:5]) // the last EXTRA stays
	same.UserAgent, same.QPS, same.ExecProvider.InstallHint = "another", 100, "no matter"
	two, err := r.Resolve(t.Context(), same)
	if err != nil {
		t.Fatal(err)
	}
	if one.Config.Transport != two.Config.Transport {
		t.Error("the same plugin and cluster have two transports")
	}
	together := b.config("serve") // by many at once, who all have the one configuration
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			res, err := r.Resolve(t.Context(), together)
			if err != nil || res.Config.Transport != one.Config.Transport {
				t.Errorf("%v, %v", res, err)
			}
		})
	}
	wg.Wait()
	b.executions(1)
	for name, change := range map[string]func(*rest.Config){
		"argument": func(c *rest.Config) { c.ExecProvider.Args = []string{"x"} },
		"environment": func(c *rest.Config) {
			c.ExecProvider.Env = append(c.ExecProvider.Env, api.ExecEnvVar{Name: "AWS_PROFILE", Value: "x"})
		},
		"server":      func(c *rest.Config) { c.Host = "https://127.0.0.1:6443" },
		"CA":          func(c *rest.Config) { c.CAData = []byte("another") },
		"tls name":    func(c *rest.Config) { c.ServerName = "127.0.0.1" },
		"extension":   func(c *rest.Config) { c.ExecProvider.Config = nil },
		"told":        func(c *rest.Config) { c.ExecProvider.ProvideClusterInfo = false },
		"compression": func(c *rest.Config) { c.DisableCompression = true },
		"version":     func(c *rest.Config) { c.ExecProvider.APIVersion = clientauthentication.V1Beta1 },
	} {
		p, q := mustPlugin(t, b.config("serve"), nil), mustPlugin(t, b.config("serve"), change)
		if p.key == q.key {
			t.Errorf("another %s is the same plugin and cluster", name)
		}
	}
}

func mustPlugin(t *testing.T, c *rest.Config, change func(*rest.Config)) *plugin {
	t.Helper()
	if change != nil {
		change(c)
	}
	p, err := pluginOf(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The proxy dies with its process: it is there again for the next request, for all who
// ask at once.
func TestExecutedAgain(t *testing.T) {
	b := newBench(t)
	res, err := b.resolver().Resolve(t.Context(), b.config("serve"))
	if err != nil {
		t.Fatal(err)
	}
	first := mustGet(t, res.HTTPClient, "https://k8s.example:6443/")
	kill(t, first.PID)
	// The pooled connection may only just be ending.
	var s *seen
	for deadline := time.Now().Add(20 * time.Second); ; {
		if s, err = get(res.HTTPClient, "https://k8s.example:6443/"); err == nil && s.PID != first.PID {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			if again, err := get(res.HTTPClient, "https://k8s.example:6443/"); err != nil || again.PID != s.PID {
				t.Errorf("%+v, %v", again, err)
			}
		})
	}
	wg.Wait()
	b.executions(2)
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	for p.Signal(syscall.Signal(0)) == nil { // until its parent, we, has waited for it
		time.Sleep(time.Millisecond)
	}
}

// A plugin that does not know the protocol, one that fails, one that is missing.
func TestUnusable(t *testing.T) {
	b := newBench(t)
	r := b.resolver()
	_, err := r.Resolve(t.Context(), b.config("token"))
	if !errors.Is(err, client.ErrNoProxy) {
		t.Errorf("a plugin without proxyConfig: %v", err)
	}
	_, err = r.Resolve(t.Context(), b.config("fail"))
	mustSay(t, err, "https://k8s.example:6443", "no luck today")
	missing := b.config("serve")
	missing.ExecProvider.Command, missing.ExecProvider.InstallHint = "no-such-plugin", "get it from\n the shelf"
	_, err = r.Resolve(t.Context(), missing)
	mustSay(t, err, "no-such-plugin", "(get it from the shelf)")
	missing.ExecProvider.Command = "/nonexistent/no-such-plugin"
	_, err = r.Resolve(t.Context(), missing)
	mustSay(t, err, "/nonexistent/no-such-plugin", "(get it from the shelf)")
	b.m.want(t, 0, map[string]int{"1 plugin_execution_error": 1, "3 plugin_execution_error": 1, "1 plugin_not_found_error": 2})
	if n := len(r.entries); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// Plugins of many clusters write to one Stderr.
func TestStderr(t *testing.T) {
	b := newBench(t)
	var out bytes.Buffer // which takes one writer at a time
	r := New(Options{Stderr: &out})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			c := b.config("fail")
			c.Host = fmt.Sprint("https://k8s.example:", 6000+i)
			_, err := r.Resolve(t.Context(), c)
			if err == nil {
				t.Error("no error")
			}
		})
	}
	wg.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(out.String(), "no luck today\n"); n != 8 {
		t.Errorf("%d of 8 lines in %q", n, out.String())
	}
}

// A request that finds no proxy is counted, one that its caller gives up is not.
func TestErrorsAreCounted(t *testing.T) {
	b := newBench(t)
	config := b.config("serve")
	res, err := b.resolver().Resolve(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	pid := mustGet(t, res.HTTPClient, "https://k8s.example:6443/").PID
	// From now on the plugin cannot listen.
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	kill(t, pid)
	for deadline := time.Now().Add(20 * time.Second); err == nil || !strings.Contains(err.Error(), "plugin"); {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		_, err = get(res.HTTPClient, "https://k8s.example:6443/")
	}
	b.m.mu.Lock()
	n := b.m.errors
	b.m.mu.Unlock()
	if n == 0 {
		t.Error("no error was counted")
	}
	streams, err := res.StreamConfig()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := upgrade(t, streams, nil); err == nil || !strings.HasPrefix(err.Error(), "502 ") || !strings.Contains(err.Error(), "plugin") {
		t.Errorf("a stream without a proxy: %v", err)
	}
	b.m.mu.Lock()
	if b.m.errors != n+1 {
		t.Errorf("%d errors are counted, want %d", b.m.errors, n+1)
	}
	b.m.mu.Unlock()
}

func TestClose(t *testing.T) {
	b := newBench(t)
	r := b.resolver()
	one, err := r.Resolve(t.Context(), b.config("serve"))
	if err != nil {
		t.Fatal(err)
	}
	two, err := r.Resolve(t.Context(), b.config("serve"))
	if err != nil {
		t.Fatal(err)
	}
	streams, err := two.StreamConfig()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := upgrade(t, streams, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is not counted
		if err := one.Close(); err != nil {
			t.Fatal(err)
		}
	}
	mustGet(t, two.HTTPClient, "https://k8s.example:6443/")
	echoes(t, conn, "still there")
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the stream is open after Close")
	}
	if _, err := get(two.HTTPClient, "https://k8s.example:6443/"); !errors.Is(err, ErrClosed) {
		t.Errorf("a request after Close: %v", err)
	}
	if _, err := two.StreamConfig(); !errors.Is(err, ErrClosed) {
		t.Errorf("StreamConfig after Close: %v", err)
	}
	b.executions(1)
	// Somebody who comes later gets a proxy of their own.
	three, err := r.Resolve(t.Context(), b.config("serve"))
	if err != nil {
		t.Fatal(err)
	}
	mustGet(t, three.HTTPClient, "https://k8s.example:6443/")
	b.executions(2)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := three.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Resolve(t.Context(), b.config("serve")); !errors.Is(err, ErrClosed) {
		t.Errorf("Resolve after Close: %v", err)
	}
}
