//go:build linux

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/cluster-inventory-api/pkg/access"
)

// TestClusterProfile: a controller on the real library and our adapter works in the
// cluster of a profile that it read from the API: who it is there stands in the
// profile's extension.
func TestClusterProfile(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	for _, version := range []string{"v1", "v1beta1"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			h, ns := newHome(t), namespace(t)
			provider := h.provider("fleet", "--provider=fleet")
			provider.ExecConfig.APIVersion = "client.authentication.k8s.io/" + version
			c := h.providerFile(provider)
			p := profile(t, ns, "jane", "fleet", realCluster(suite.cluster.API.URL, map[string]any{execExtension: mtls(h.user("jane", "dev"))}))
			cs, err := enter(t, resolver(t), c, p)
			must(t, err)
			if user, err := whoAmI(t.Context(), cs); err != nil || user != "jane" {
				t.Fatalf("the API server sees %q, %v", user, err)
			}
			watch, err := cs.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{})
			must(t, err)
			defer watch.Stop()
			_, err = cs.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("a", "1"), metav1.CreateOptions{})
			must(t, err)
			if e := <-watch.ResultChan(); e.Type != "ADDED" {
				t.Errorf("watched %v", e)
			}
			if s := h.proxy(); s.Server != suite.cluster.API.URL || s.Identity == "" || s.Socket == "" {
				t.Errorf("status: %+v", s)
			}
		})
	}
}

// TestClusterProfileProviderFile: what `execproxy kubeconfig` prints for controllers
// is a provider file to the real library, to the last field, and works.
func TestClusterProfileProviderFile(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	h, ns := newHome(t), namespace(t)
	cert, key := h.user("jane", "dev")
	out := h.execproxy("kubeconfig", "--cluster-profile-provider", "fleet", "--command", h.bin, "--auth", "mtls", "--cert", cert, "--key", key).ok(t)
	strict := json.NewDecoder(strings.NewReader(out))
	strict.DisallowUnknownFields()
	must(t, strict.Decode(&access.Config{}))
	if _, err := strict.Token(); err != io.EOF {
		t.Errorf("more than one document: %s", out)
	}
	c, err := access.NewFromFile(h.file("fleet.json", out))
	must(t, err)
	if len(c.Providers) != 1 || c.Providers[0].Name != "fleet" || c.Providers[0].ProfileSourcedCLIArgsPolicy != access.ProfileSourcedCLIArgsPolicyIgnore ||
		c.Providers[0].ProfileSourcedEnvVarsPolicy != access.ProfileSourcedEnvVarsPolicyIgnore || !c.Providers[0].ExecConfig.ProvideClusterInfo {
		t.Errorf("%s is read as %+v", out, c)
	}
	h.inhabit(&c.Providers[0])
	r := resolver(t)
	server := suite.cluster.API.URL
	plain := profile(t, ns, "plain", "fleet", realCluster(server, nil))
	if user, err := profileUser(t, r, c, plain); err != nil || user != "jane" {
		t.Errorf("the API server sees %q, %v", user, err)
	}
	// The profile's author may speak of the cluster, and of nothing on this machine.
	named := profile(t, ns, "named", "fleet", realCluster(server, map[string]any{execExtension: object{"upstream": object{"tls-server-name": "localhost", "server": server}}}))
	if user, err := profileUser(t, r, c, named); err != nil || user != "jane" {
		t.Errorf("with a name for TLS the API server sees %q, %v", user, err)
	}
	for field, value := range map[string]any{"key": key, "pkcs11Module": "/tmp/evil.so", "headers": []string{"X-A=@/etc/passwd"}, "logFile": "/tmp/x", "config": "/tmp/x"} {
		hostile := profile(t, ns, strings.ToLower(field), "fleet", realCluster(server, map[string]any{execExtension: object{field: value}}))
		if user, err := profileUser(t, r, c, hostile); err == nil || !strings.Contains(err.Error(), "extension: "+field) {
			t.Errorf("%s in a profile: %q, %v", field, user, err)
		}
	}
	if err := os.Remove("/tmp/x"); err == nil {
		t.Error("a profile made a file here")
	}
}

// TestClusterProfilePolicies: what a profile adds by arguments and by environment is
// taken as the provider's policy says, and the plugin's own precedence holds.
func TestClusterProfilePolicies(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	h, ns := newHome(t), namespace(t)
	janeCert, janeKey := h.user("jane", "dev")
	bobCert, bobKey := h.user("bob")
	annCert, annKey := h.user("ann")
	server := suite.cluster.API.URL
	bob := map[string]string{"EXECPROXY_CERT": bobCert, "EXECPROXY_KEY": bobKey}
	ann := []string{"--cert", annCert, "--key", annKey}
	r := resolver(t)
	for _, tt := range []struct {
		args     access.ProfileSourcedCLIArgsPolicy
		env      access.ProfileSourcedEnvVarsPolicy
		own      bool // the provider has an identity of its own, in its environment
		user     string
		anywhere string // where the profile says its part; "" both
	}{
		{"Ignore", "Ignore", true, "jane", ""},
		{"", "", true, "jane", ""},
		{"Append", "Ignore", true, "ann", ""},
		{"Append", "Replace", true, "ann", ""},
		{"Ignore", "AppendIfNotExists", true, "jane", ""},
		{"Ignore", "AppendIfNotExists", false, "bob", ""},
		{"Ignore", "Replace", true, "bob", ""},
		{"Append", "AppendIfNotExists", false, "bob", envsExtension},
		{"Append", "AppendIfNotExists", true, "ann", argsExtension},
		{"", "Replace", false, "bob", ""},
	} {
		name := fmt.Sprintf("args=%s,envs=%s,own=%v", tt.args, tt.env, tt.own)
		provider := h.provider("fleet", "--auth=mtls")
		provider.ProfileSourcedCLIArgsPolicy, provider.ProfileSourcedEnvVarsPolicy = tt.args, tt.env
		if tt.own {
			provider.ExecConfig.Env = append(provider.ExecConfig.Env, api.ExecEnvVar{Name: "EXECPROXY_CERT", Value: janeCert}, api.ExecEnvVar{Name: "EXECPROXY_KEY", Value: janeKey})
		}
		said := map[string]any{}
		if tt.anywhere != argsExtension {
			said[envsExtension] = bob
		}
		p := profile(t, ns, fmt.Sprintf("p%x", name), "fleet", realCluster(server, said))
		if tt.anywhere != envsExtension {
			// See TestClusterProfileArgumentsAreNoObject.
			p.Status.AccessProviders[0].Cluster.Extensions = append(p.Status.AccessProviders[0].Cluster.Extensions, realCluster("", map[string]any{argsExtension: ann}).Extensions...)
		}
		if user, err := profileUser(t, r, h.providerFile(provider), p); err != nil || user != tt.user {
			t.Errorf("%s: the API server sees %q, %v; want %s", name, user, err, tt.user)
		}
	}
}

// TestClusterProfileArgumentsAreNoObject: the real definition takes objects as
// extensions and nothing else, so that additional-args, a list, cannot be said in the
// API at all. The day this fails, docs/clusterprofile.md is to be corrected.
func TestClusterProfileArgumentsAreNoObject(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	_, err := createProfile(t.Context(), inventory(t), namespace(t), "args", "fleet", realCluster(suite.cluster.API.URL, map[string]any{argsExtension: []string{"--auth=mtls"}}))
	if err == nil || !strings.Contains(err.Error(), `must be of type object: "array"`) {
		t.Errorf("a list as an extension: %v", err)
	}
}

// TestClusterProfilesAreNotMixed: the library hands one profile's arguments and
// environment to the next. The first profile works; the second is refused instead of
// entered as somebody else.
func TestClusterProfilesAreNotMixed(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	a, b := suite.cluster.API.URL, strings.Replace(suite.cluster.API.URL, "127.0.0.1", "localhost", 1)
	h, ns := newHome(t), namespace(t)
	janeCert, janeKey := h.user("jane", "dev")
	bobCert, bobKey := h.user("bob")
	for name, tt := range map[string]struct {
		jane, bob map[string]any
		want      []string
	}{
		"arguments":            {map[string]any{argsExtension: []string{"--cert", janeCert, "--key", janeKey}}, map[string]any{argsExtension: []string{"--cert", bobCert, "--key", bobKey}}, []string{"more than once", "two clusters"}},
		"arguments with guard": {map[string]any{argsExtension: []string{"--server", a, "--cert", janeCert, "--key", janeKey}}, nil, []string{"--server", a, b}},
		"environment, guarded": {map[string]any{envsExtension: map[string]string{"EXECPROXY_SERVER": a, "EXECPROXY_CERT": janeCert, "EXECPROXY_KEY": janeKey}},
			map[string]any{envsExtension: map[string]string{"EXECPROXY_SERVER": b, "EXECPROXY_CERT": bobCert, "EXECPROXY_KEY": bobKey}}, []string{"EXECPROXY_SERVER", a, b}},
	} {
		t.Run(name, func(t *testing.T) {
			provider := h.provider("fleet", "--auth=mtls")
			provider.ProfileSourcedCLIArgsPolicy, provider.ProfileSourcedEnvVarsPolicy = "Append", "AppendIfNotExists"
			shared := h.providerFile(provider)
			r := resolver(t)
			slug := strings.NewReplacer(" ", "-", ",", "").Replace(name)
			first, second := profile(t, ns, slug+"-a", "fleet", realCluster(a, nil)), profile(t, ns, slug+"-b", "fleet", realCluster(b, nil))
			first.Status.AccessProviders[0].Cluster = realCluster(a, tt.jane)
			second.Status.AccessProviders[0].Cluster = realCluster(b, tt.bob)
			if user, err := profileUser(t, r, shared, first); err != nil || user != "jane" {
				t.Fatalf("the first profile: %q, %v", user, err)
			}
			user, err := profileUser(t, r, shared, second)
			if err == nil {
				t.Fatalf("the second profile was entered as %q", user)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v does not say %q", err, w)
				}
			}
			for _, s := range h.status() {
				if s.Server == b {
					t.Errorf("a proxy was started: %+v", s)
				}
			}
			// With the provider file read for each profile, both work.
			if tt.bob != nil {
				if user, err := profileUser(t, r, h.providerFile(provider), second); err != nil || user != "bob" {
					t.Errorf("the second profile with a provider file of its own: %q, %v", user, err)
				}
			}
		})
	}

	// Without EXECPROXY_SERVER among them variables of two profiles cannot be told
	// from one's: this is why the page says to add it, or to use the extension.
	t.Run("the limit", func(t *testing.T) {
		provider := h.provider("fleet", "--auth=mtls")
		provider.ProfileSourcedEnvVarsPolicy = "AppendIfNotExists"
		shared := h.providerFile(provider)
		r := resolver(t)
		of := func(cert, key string) map[string]any {
			return map[string]any{envsExtension: map[string]string{"EXECPROXY_CERT": cert, "EXECPROXY_KEY": key}}
		}
		for _, p := range []struct {
			name, server string
			said         map[string]any
		}{{"limit-a", a, of(janeCert, janeKey)}, {"limit-b", b, of(bobCert, bobKey)}} {
			if user, err := profileUser(t, r, shared, profile(t, ns, p.name, "fleet", realCluster(p.server, p.said))); err != nil || user != "jane" {
				t.Errorf("%s: %q, %v; the library has changed, so must the page", p.name, user, err)
			}
		}
	})
}

// TestClusterProfileEnvironmentOrder: the library shuffles the environment, and it is
// one proxy all the same.
func TestClusterProfileEnvironmentOrder(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	h, ns, front := newHome(t), namespace(t), newFrontProxy(t, "127.0.0.1")
	provider := h.provider("fleet", "--auth=sigv4", "--aws-region=eu-central-1", "--aws-service=execute-api")
	provider.ProfileSourcedEnvVarsPolicy = "Replace"
	p := profile(t, ns, "a", "fleet", realCluster(front.URL, map[string]any{envsExtension: map[string]string{
		"AWS_ACCESS_KEY_ID": awsKeyID, "AWS_SECRET_ACCESS_KEY": awsSecret, "AWS_SESSION_TOKEN": awsToken, "AWS_REGION": "eu-central-1", "AWS_MAX_ATTEMPTS": "2", "AWS_RETRY_MODE": "standard",
	}}))
	orders := map[string]bool{}
	for range 8 {
		c := h.providerFile(provider)
		config, err := c.BuildConfigFromCP(p)
		must(t, err)
		orders[fmt.Sprint(config.ExecProvider.Env)] = true
		if user, err := profileUser(t, resolver(t), c, p); err != nil || user != "arn:aws:iam::1:user/jane" {
			t.Fatalf("the API server sees %q, %v", user, err)
		}
	}
	if len(orders) < 2 {
		t.Error("the library does not shuffle any more: this test shows nothing")
	}
	h.proxy() // the only one
}

// TestClusterProfileDroppedFields: the library drops tls-server-name and
// disable-compression of the profile's cluster. The extension has them too.
func TestClusterProfileDroppedFields(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	h, ns, u := newHome(t), namespace(t), newNamedUpstream(t, "api.fleet.test")
	c := h.providerFile(h.provider("fleet", append([]string{"--provider=fleet", "--extension-policy=cluster"}, identityFlags(h.user("jane", "dev"))...)...))
	r := resolver(t)
	cluster := realCluster(u.url, nil)
	cluster.TLSServerName, cluster.DisableCompression = "api.fleet.test", true
	config, err := c.BuildConfigFromCP(profile(t, ns, "dropped", "fleet", cluster))
	must(t, err)
	if config.ServerName != "" || config.DisableCompression {
		t.Error("the library drops nothing any more; so much the better")
	}
	if _, err := r.Resolve(t.Context(), config); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the name the server's certificate is: %v", err)
	}
	cluster.Extensions = realCluster("", map[string]any{execExtension: object{"upstream": object{"tls-server-name": "api.fleet.test", "disable-compression": true}}}).Extensions
	cs, err := enter(t, r, c, profile(t, ns, "kept", "fleet", cluster))
	must(t, err)
	_, err = cs.CoreV1().RESTClient().Get().AbsPath("/api").SetHeader("Accept-Encoding", "gzip").DoRaw(t.Context())
	must(t, err)
	s := u.last(t, "/api")
	if s.user != "jane" || s.header.Get("Accept-Encoding") != "" {
		t.Errorf("the server saw %q with Accept-Encoding %q", s.user, s.header.Get("Accept-Encoding"))
	}
}

// TestClusterProfileUnmodified: client-go alone, on nothing but a provider file.
func TestClusterProfileUnmodified(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	h, ns := newHome(t), namespace(t)
	cert, key := h.user("jane", "dev")

	// The API server's own address: client-go would go there itself, past the proxy,
	// and is told so. Nothing is started.
	far := strings.Replace(suite.cluster.API.URL, "127.0.0.1", "kubernetes.execproxy.test", 1)
	c := h.providerFile(h.provider("fleet", identityFlags(cert, key)...))
	config, err := c.BuildConfigFromCP(profile(t, ns, "far", "fleet", realCluster(far, nil)))
	must(t, err)
	cs, err := kubernetes.NewForConfig(config)
	must(t, err)
	if _, err := whoAmI(t.Context(), cs); err == nil || !strings.Contains(err.Error(), "exit code 1") {
		t.Errorf("without the adapter: %v", err)
	}
	if s := h.status(); len(s) > 0 {
		t.Errorf("a proxy was started for nobody: %+v", s)
	}

	// The credential itself, where it may leave: no proxy at all.
	c = h.providerFile(h.provider("fleet", append(identityFlags(cert, key), "--direct")...))
	config, err = c.BuildConfigFromCP(profile(t, ns, "direct", "fleet", realCluster(suite.cluster.API.URL, nil)))
	must(t, err)
	cs, err = kubernetes.NewForConfig(config)
	must(t, err)
	if user, err := whoAmI(t.Context(), cs); err != nil || user != "jane" {
		t.Errorf("with a credential of its own the API server sees %q, %v", user, err)
	}
	if s := h.status(); len(s) > 0 {
		t.Errorf("a proxy was started for nobody: %+v", s)
	}

	// A key that cannot leave has no such way, and the plugin says so: such a
	// controller needs the adapter.
	config.ExecProvider.Args = []string{"exec", "--direct", "--auth=mtls", "--key=tpm:handle=0x81000100", "--cert=" + cert}
	var info strings.Builder
	fmt.Fprintf(&info, `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false,"cluster":{"server":%q}}}`, config.Host)
	cmd := h.command(append([]string{h.bin}, config.ExecProvider.Args...)...)
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+info.String())
	refused(t, h.do(cmd), 1, "TPM", "--direct")
	if cs, err = kubernetes.NewForConfig(config); err == nil {
		_, err = whoAmI(t.Context(), cs)
	}
	if err == nil || !strings.Contains(err.Error(), "exit code 1") {
		t.Errorf("a key in a TPM, without the adapter: %v", err)
	}

	// A listener of this machine, in a profile of this machine: works as a kubeconfig does.
	printed := h.proxied("--server", suite.cluster.API.URL, "--certificate-authority", suite.cluster.Dir+"/ca.crt", "--cert", cert, "--key", key)
	data, err := os.ReadFile(printed)
	must(t, err)
	local, extension := localCluster(t, data)
	near := realCluster(local.Server, nil)
	near.CertificateAuthorityData = local.CertificateAuthorityData
	near.Extensions = realCluster("", map[string]any{execExtension: json.RawMessage(extension)}).Extensions
	c = h.providerFile(h.provider("fleet"))
	config, err = c.BuildConfigFromCP(profile(t, ns, "near", "fleet", near))
	must(t, err)
	cs, err = kubernetes.NewForConfig(config)
	must(t, err)
	if user, err := whoAmI(t.Context(), cs); err != nil || user != "jane" {
		t.Errorf("by way of the loopback listener the API server sees %q, %v", user, err)
	}
}

// TestObtentions: how often plugins were answered is told in metrics and status, what
// failed before there was a proxy as well.
func TestObtentions(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	h, ns := newHome(t), namespace(t)
	cert, key := h.user("jane", "dev")
	c := h.providerFile(h.provider("example.com/fleet", append(identityFlags(cert, key), "--provider=example.com/fleet", "--metrics-address=127.0.0.1:0")...))
	p := profile(t, ns, "a", "example.com/fleet", realCluster(suite.cluster.API.URL, nil))
	must(t, os.Rename(key, key+".away"))
	if _, err := profileUser(t, resolver(t), c, p); err == nil {
		t.Fatal("a proxy without its key")
	}
	must(t, os.Rename(key+".away", key))
	for range 3 {
		if user, err := profileUser(t, resolver(t), c, p); err != nil || user != "jane" {
			t.Fatalf("the API server sees %q, %v", user, err)
		}
	}
	s := h.proxy()
	if len(s.Obtentions) != 1 || s.Obtentions[0].Provider != "example.com/fleet" || s.Obtentions[0].Success != 3 || s.Obtentions[0].Error < 1 || s.Obtentions[0].Seconds <= 0 {
		t.Errorf("status: %+v", s.Obtentions)
	}
	resp, err := http.Get(s.Metrics)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	const labels = `{provider="example.com/fleet",result="success"`
	for _, want := range []string{
		"execproxy_obtentions_total" + labels + "} 3\n",
		"execproxy_obtentions_total" + strings.Replace(labels, "success", "error", 1) + "} ",
		"execproxy_obtention_duration_seconds_count" + labels + "} 3\n",
		"execproxy_obtention_duration_seconds_bucket" + labels + `,le="30"} 3` + "\n",
	} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	secrets := canaries{}
	secrets.addKey(t, key)
	secrets.absent(t, "the metrics", string(body))
}

// identityFlags says who we are by arguments.
func identityFlags(cert, key string) []string {
	return []string{"--auth=mtls", "--cert=" + cert, "--key=" + key}
}
