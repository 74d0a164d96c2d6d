package clientgo

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os/exec"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/execproxy/execproxy/proxy/client"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// A plugin is what a rest.Config says of one.
type plugin struct {
	server  string // for messages
	hint    string // how to install it
	key     string // the same for the same plugin and cluster
	options client.Options
}

// pluginOf takes the plugin and its cluster from a rest.Config, and refuses what would be
// lost on the way.
func pluginOf(config *rest.Config) (*plugin, error) {
	if config == nil || config.ExecProvider == nil {
		return nil, errors.New("the rest.Config has no ExecProvider: its user must have an exec section in the kubeconfig")
	}
	server, err := serverURL(config.Host)
	if err != nil {
		return nil, err
	}
	p := &plugin{server: server.Redacted(), hint: strings.Join(strings.Fields(config.ExecProvider.InstallHint), " ")}
	if err := p.take(config, server); err != nil {
		return nil, fmt.Errorf("rest.Config of %s: %w", p.server, err)
	}
	return p, nil
}

func (p *plugin) take(config *rest.Config, server *url.URL) error {
	if err := refused(config); err != nil {
		return err
	}
	x := config.ExecProvider
	switch x.APIVersion {
	case clientauthentication.V1, clientauthentication.V1Beta1:
	default:
		return fmt.Errorf("exec.apiVersion %q is neither %s nor %s", x.APIVersion, clientauthentication.V1, clientauthentication.V1Beta1)
	}
	switch x.InteractiveMode {
	case "", api.NeverExecInteractiveMode, api.IfAvailableExecInteractiveMode:
	case api.AlwaysExecInteractiveMode:
		return errors.New("exec.interactiveMode is Always, and there is no terminal to give the plugin; set IfAvailable or Never")
	default:
		return fmt.Errorf("exec.interactiveMode %q is not known; set IfAvailable or Never", x.InteractiveMode)
	}
	command, err := allowed(x.PluginPolicy, x.Command)
	if err != nil {
		return err
	}
	cluster, err := clusterOf(config, server)
	if err != nil {
		return err
	}
	if !x.ProvideClusterInfo && cluster.ProxyURL != "" {
		return errors.New("it has Proxy, and the plugin is not told of the cluster; set exec.provideClusterInfo, or unset Proxy and tell the plugin by its own flags")
	}
	p.options = client.Options{
		Command: command, Args: slices.Clone(x.Args), ExtraEnv: environment(x.Env),
		Cluster: *cluster, OmitCluster: !x.ProvideClusterInfo, APIVersion: x.APIVersion,
	}
	key, err := json.Marshal([]any{command, p.options.Args, p.options.ExtraEnv, cluster, x.ProvideClusterInfo, x.APIVersion})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(key) // the environment may hold secrets
	p.key = string(sum[:])
	return nil
}

// refused returns what is wrong with a configuration that a proxy could not honour.
func refused(c *rest.Config) error {
	credential := ""
	switch {
	case c.BearerToken != "" || c.BearerTokenFile != "":
		credential = "a bearer token"
	case c.Username != "" || c.Password != "":
		credential = "basic auth"
	case len(c.CertData) > 0 || c.CertFile != "" || len(c.KeyData) > 0 || c.KeyFile != "":
		credential = "a client certificate"
	case c.AuthProvider != nil:
		credential = "an AuthProvider"
	}
	switch {
	case credential != "":
		return fmt.Errorf("it has %s beside ExecProvider: client-go would not execute the plugin at all; remove one of them", credential)
	case c.Transport != nil:
		return errors.New("it has Transport beside ExecProvider: the way to the API server is the proxy's; use WrapTransport for middleware")
	case c.Dial != nil:
		return errors.New("it has Dial, and it is the proxy that connects to the API server; unset it")
	case c.Insecure && (len(c.CAData) > 0 || c.CAFile != ""):
		return errors.New("it has Insecure beside a CA: remove one of them")
	case len(c.NextProtos) > 0 && !slices.Contains(c.NextProtos, "h2"):
		return errors.New("it has NextProtos without h2, and the proxy is spoken to in HTTP/2; unset it")
	}
	return nil
}

// serverURL is a Host as rest.Config has it: a URL, or a host and perhaps a port, which
// with a plugin means https.
func serverURL(host string) (*url.URL, error) {
	if host == "" {
		return nil, errors.New("the rest.Config has no Host: name the cluster's server")
	}
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	u, err := url.Parse(host)
	switch {
	case err != nil || u.Hostname() == "":
		return nil, errors.New("the rest.Config's Host is not a URL like https://prod.example:6443")
	case u.Scheme != "https":
		return nil, fmt.Errorf("the rest.Config's Host is %s: only over https can a plugin authenticate; use its https address", u.Redacted())
	}
	return u, nil
}

// host is Config.Host: with a scheme, as client-go guesses it by the TLS settings, which
// are gone.
func (p *plugin) host(config *rest.Config) string {
	if strings.Contains(config.Host, "://") {
		return config.Host
	}
	return "https://" + config.Host
}

// clusterOf is the cluster as client-go tells it to a plugin.
func clusterOf(config *rest.Config, server *url.URL) (*clientauthentication.Cluster, error) {
	c := *config
	c.Host = server.String()
	told, err := rest.ConfigToExecCluster(&c)
	if err != nil {
		return nil, err
	}
	cluster := &clientauthentication.Cluster{
		Server: told.Server, TLSServerName: told.TLSServerName, InsecureSkipTLSVerify: told.InsecureSkipTLSVerify,
		CertificateAuthorityData: told.CertificateAuthorityData, ProxyURL: told.ProxyURL, DisableCompression: told.DisableCompression,
	}
	if told.Config != nil {
		if cluster.Config, err = json.Marshal(unwrapped(told.Config)); err != nil {
			return nil, fmt.Errorf("the cluster's extension for its plugin: %w", err)
		}
		if string(cluster.Config) == "null" {
			cluster.Config = nil
		}
	}
	return cluster, nil
}

// unwrapped undoes what rest.Config's String does to its own ExecProvider.Config: since it
// was logged once, that is a wrapper, which encodes as something else.
func unwrapped(o runtime.Object) runtime.Object {
	if v := reflect.ValueOf(o); v.Kind() == reflect.Struct && v.NumField() == 1 && v.Type().Field(0).Anonymous {
		if inner, ok := v.Field(0).Interface().(runtime.Object); ok {
			return inner
		}
	}
	return o
}

// environment is in one order, so that it tells the same plugin from another. Of several
// values for a name the last one counts.
func environment(env []api.ExecEnvVar) []string {
	values := map[string]string{}
	for _, v := range env {
		values[v.Name] = v.Value
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, name+"="+values[name])
	}
	return out
}

// explain adds to the error of a plugin that is missing how to install it.
func (p *plugin) explain(err error) error {
	var failed *client.PluginError
	if p.hint != "" && errors.As(err, &failed) && (errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("%w (%s)", err, p.hint)
	}
	return err
}
