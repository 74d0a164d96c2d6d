package clientgo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

func TestRefused(t *testing.T) {
	b := newBench(t)
	r := b.resolver()
	for name, tc := range map[string]struct {
		change func(*rest.Config)
		says   string
	}{
		"no plugin":    {func(c *rest.Config) { c.ExecProvider = nil }, "no ExecProvider"},
		"no command":   {func(c *rest.Config) { c.ExecProvider.Command = "" }, "exec.command is empty"},
		"no host":      {func(c *rest.Config) { c.Host = "" }, "no Host"},
		"http":         {func(c *rest.Config) { c.Host = "http://k8s.example" }, "https"},
		"password":     {func(c *rest.Config) { c.Host = "http://me:pin-2718@k8s.example" }, "https"},
		"not a URL":    {func(c *rest.Config) { c.Host = "https://%" }, "not a URL"},
		"version":      {func(c *rest.Config) { c.ExecProvider.APIVersion = "client.authentication.k8s.io/v1alpha1" }, "v1alpha1"},
		"no version":   {func(c *rest.Config) { c.ExecProvider.APIVersion = "" }, "exec.apiVersion"},
		"always":       {func(c *rest.Config) { c.ExecProvider.InteractiveMode = api.AlwaysExecInteractiveMode }, "interactiveMode is Always"},
		"unknown mode": {func(c *rest.Config) { c.ExecProvider.InteractiveMode = "Sometimes" }, `"Sometimes"`},
		"token":        {func(c *rest.Config) { c.BearerToken = "pin-2718" }, "a bearer token"},
		"token file":   {func(c *rest.Config) { c.BearerTokenFile = "/x" }, "a bearer token"},
		"basic auth":   {func(c *rest.Config) { c.Username = "me" }, "basic auth"},
		"certificate":  {func(c *rest.Config) { c.CertFile = "/x" }, "a client certificate"},
		"key":          {func(c *rest.Config) { c.KeyData = []byte("pin-2718") }, "a client certificate"},
		"AuthProvider": {func(c *rest.Config) { c.AuthProvider = &api.AuthProviderConfig{} }, "an AuthProvider"},
		"Transport":    {func(c *rest.Config) { c.Transport = &http.Transport{} }, "WrapTransport"},
		"Dial": {func(c *rest.Config) {
			c.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, nil }
		}, "Dial"},
		"insecure":   {func(c *rest.Config) { c.Insecure = true }, "Insecure beside a CA"},
		"HTTP/1.1":   {func(c *rest.Config) { c.NextProtos = []string{"http/1.1"} }, "NextProtos"},
		"no CA file": {func(c *rest.Config) { c.CAData, c.CAFile = nil, filepath.Join(b.dir, "none") }, "none"},
		"proxy, untold": {func(c *rest.Config) {
			c.Proxy = proxyAt("http://proxy.example")
			c.ExecProvider.ProvideClusterInfo = false
		}, "provideClusterInfo"},
		"policy":         {func(c *rest.Config) { c.ExecProvider.PluginPolicy.PolicyType = api.PluginPolicyDenyAll }, "DenyAll"},
		"unknown policy": {func(c *rest.Config) { c.ExecProvider.PluginPolicy.PolicyType = "Maybe" }, "Maybe"},
	} {
		config := b.config("serve")
		tc.change(config)
		_, err := r.Resolve(t.Context(), config)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		mustSay(t, err, tc.says)
		if strings.Contains(err.Error(), "pin-2718") {
			t.Errorf("%s: a secret in %q", name, err)
		}
	}
	if _, err := r.Resolve(t.Context(), nil); err == nil {
		t.Error("nil: no error")
	}
	b.executions(0)
}

func proxyAt(s string) func(*http.Request) (*url.URL, error) {
	u, err := url.Parse(s)
	return func(*http.Request) (*url.URL, error) { return u, err }
}

// A plugin that can be told of a proxy-url is.
func TestProxyIsTold(t *testing.T) {
	c := newBench(t).config("serve")
	c.Proxy = proxyAt("http://proxy.example:3128")
	if p := mustPlugin(t, c, nil); p.options.Cluster.ProxyURL != "http://proxy.example:3128" {
		t.Errorf("told of %q", p.options.Cluster.ProxyURL)
	}
	c.Proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("no idea") }
	_, err := pluginOf(c)
	mustSay(t, err, "no idea")
}

func TestPolicy(t *testing.T) {
	dir := t.TempDir()
	program, other := filepath.Join(dir, "plugin.exe"), filepath.Join(dir, "other.exe")
	for _, name := range []string{program, other} {
		if err := os.WriteFile(name, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	list := func(commands ...string) (p api.PluginPolicy) {
		p.PolicyType = api.PluginPolicyAllowlist
		for _, c := range commands {
			p.Allowlist = append(p.Allowlist, api.AllowlistEntry{Command: c})
		}
		return p
	}
	for name, tc := range map[string]struct {
		policy  api.PluginPolicy
		command string
		want    string // "": refused
	}{
		"none":              {api.PluginPolicy{}, "plugin.exe", "plugin.exe"},
		"all":               {api.PluginPolicy{PolicyType: api.PluginPolicyAllowAll}, "./x/../plugin.exe", "plugin.exe"},
		"nothing":           {api.PluginPolicy{PolicyType: api.PluginPolicyDenyAll}, program, ""},
		"by name":           {list("plugin.exe"), "plugin.exe", program},
		"name for path":     {list("plugin.exe"), program, program},
		"path for name":     {list("missing.exe", program), "plugin.exe", program},
		"another":           {list("other.exe", other), "plugin.exe", ""},
		"not installed":     {list("missing.exe"), "missing.exe", ""},
		"empty list":        {list(), program, ""},
		"list without type": {api.PluginPolicy{Allowlist: list(program).Allowlist}, program, ""},
	} {
		got, err := allowed(tc.policy, tc.command)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, tc.want)
		}
	}
}

// TestExecuted: the outcome of an execution and its labels.
func TestExecuted(t *testing.T) {
	b := newBench(t)
	for err, want := range map[error]string{
		nil:                      "0 no_error",
		errors.New("of our own"): "1 client_internal_error",
		fmt.Errorf("pipe: %w", os.NewSyscallError("pipe2", errors.New("x"))): "1 client_internal_error",
	} {
		executed(&b.m, err)
		if b.m.calls[want] != 1 {
			t.Errorf("%v was counted as %v, want %s", err, b.m.calls, want)
		}
		clear(b.m.calls)
	}
}
