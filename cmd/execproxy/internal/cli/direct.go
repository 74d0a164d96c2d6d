package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/plugin"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

const directUsage = "a credential for the API server itself, no proxy: for clients that shall talk to it themselves"

// errNoProxy is for flags that --direct has no use for.
var errNoProxy = errors.New("goes with a proxy, and --direct is without one; drop one of the two")

// direct is the plain exec plugin of KEP-541: a bearer token, or a certificate and its
// key, for a client that talks to the API server itself. That the client would take a
// proxy (lockFilePath) changes nothing: this was asked for on the command line, and nothing
// weaker can ask for it.
func (w *world) direct(ctx context.Context, o *options, c *config.Config, info *clientauthentication.ExecCredential) (*clientauthentication.Status, error) {
	for _, f := range []struct {
		name string
		set  bool
	}{{"socket", c.Socket != ""}, {"foreground", c.Foreground}, {"listen", len(c.Listen) > 0}} {
		if f.set {
			return nil, &config.FieldError{Field: f.name, Err: errNoProxy}
		}
	}
	if err := directCluster(c, info.Spec.Cluster); err != nil {
		return nil, err
	}
	if err := o.complete(c); err != nil {
		return nil, err
	}
	if c.ExecProvideClusterInfo && c.Server == "" {
		return nil, &config.FieldError{Field: "exec-provide-cluster-info", Err: errors.New("nobody said which cluster it is; set provideClusterInfo: true in the kubeconfig's exec section, or --server")}
	}
	if s, err := daemon.Direct(ctx, c); s != nil || err != nil {
		return s, err
	}
	if !c.ExecProvideClusterInfo {
		c.Cluster = config.Cluster{} // one credential for all of them
	}
	p, err := w.places()
	if err != nil {
		return nil, err
	}
	plugin := &daemon.Plugin{
		Config: c, Places: p, Environ: w.environ, Version: w.version,
		Ask:   daemon.Ask{Direct: true, Client: os.Getppid(), Provider: c.Provider, Began: o.began},
		Login: w.login(c, info.Spec.Interactive),
	}
	return plugin.Obtain(ctx)
}

// directCluster completes the cluster from what the client says, and refuses where two are
// named: a credential must not go to another cluster than it was configured for.
func directCluster(c *config.Config, k *clientauthentication.Cluster) error {
	if k == nil {
		return nil
	}
	u, err := config.ServerURL(k.Server)
	if err != nil {
		return fmt.Errorf("the client's server: %w", err)
	}
	if c.Server == "" {
		fromClient(c, k)
		return nil
	}
	said, err := config.ServerURL(c.Server)
	if err != nil {
		return &config.FieldError{Field: "server", Err: err}
	}
	if !config.SameServer(said.String(), u.String()) {
		return &config.FieldError{Field: "server", Err: fmt.Errorf("is %s, and the client calls %s itself: no credential of one cluster goes to another; correct one of the two", config.Shown(said), config.Shown(u))}
	}
	return nil
}

// login runs the plugin behind ours with the client's terminal; nil where it has none to
// give, or the plugin wants none.
func (w *world) login(c *config.Config, interactive bool) func(context.Context) (*clientauthentication.Status, error) {
	if c.Auth != config.AuthExec || c.ExecInteractiveMode == config.InteractiveNever || !interactive {
		return nil
	}
	return func(ctx context.Context) (*clientauthentication.Status, error) {
		o, err := daemon.Chained(c, w.environ)
		if err != nil {
			return nil, err
		}
		o.Stdin, o.Stderr = w.stdin, w.stderr
		return plugin.Credential(ctx, o)
	}
}

// directKubeconfig is a kubeconfig for the real cluster whose user is `exec --direct`. All
// it needs stands in the arguments: some clients tell their plugin nothing.
func directKubeconfig(s *source, command string, clusterInfo bool) ([]byte, error) {
	c := s.config
	out := api.NewConfig()
	out.CurrentContext = s.context
	out.Clusters[s.cluster] = &api.Cluster{
		Server: c.Server, CertificateAuthority: c.CertificateAuthority, CertificateAuthorityData: c.CertificateAuthorityData,
		TLSServerName: c.TLSServerName, InsecureSkipTLSVerify: c.InsecureSkipTLSVerify, ProxyURL: c.ProxyURL, DisableCompression: c.DisableCompression,
	}
	// The plugin behind inherits its variables from ours: arguments are open to every user of
	// the machine.
	var env []api.ExecEnvVar
	said := *c
	said.ExecEnv = nil
	for _, e := range c.ExecEnv {
		name, value, _ := strings.Cut(e, "=")
		if !daemon.Inherited(name) {
			said.ExecEnv = append(said.ExecEnv, e)
			continue
		}
		env = append(env, api.ExecEnvVar{Name: name, Value: value})
	}
	// The plugin has no use for the cluster, unless the one behind has: then the client tells
	// it, or else the arguments do.
	but := []config.Group{config.GroupRenew, config.GroupSigner, config.GroupListen, config.GroupPolicy, config.GroupCluster}
	if said.ExecProvideClusterInfo && !clusterInfo {
		but = but[:len(but)-1]
	}
	out.AuthInfos[s.user] = &api.AuthInfo{Exec: &api.ExecConfig{
		APIVersion: clientauthentication.V1, Command: command, Args: append([]string{"exec", "--direct"}, said.Arguments(but...)...), Env: env,
		InteractiveMode: api.IfAvailableExecInteractiveMode, ProvideClusterInfo: said.ExecProvideClusterInfo && clusterInfo, InstallHint: installHint,
	}}
	out.Contexts[s.context] = &api.Context{Cluster: s.cluster, AuthInfo: s.user, Namespace: s.namespace}
	return clientcmd.Write(*out)
}

// describeExec says in the words of the exec extension what a kubeconfig says of a user
// whose plugin the proxy is to stand in front of.
func describeExec(doc map[string]any, e *api.ExecConfig, user string, foreign bool) error {
	if e.ProvideClusterInfo && foreign {
		return fmt.Errorf("user %q runs the exec plugin %s, which reads an exec extension of the cluster that cannot be passed on; name another identity with --auth", user, e.Command)
	}
	doc["auth"], doc["execCommand"] = config.AuthExec, e.Command
	if len(e.Args) > 0 {
		doc["execArgs"] = e.Args
	}
	var env []string
	for _, v := range e.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	if len(env) > 0 {
		doc["execEnv"] = env
	}
	if e.APIVersion != "" {
		doc["execApiVersion"] = e.APIVersion
	}
	if e.InteractiveMode != "" {
		doc["execInteractiveMode"] = string(e.InteractiveMode)
	}
	if e.ProvideClusterInfo {
		doc["execProvideClusterInfo"] = true
	}
	return nil
}

// warn tells of what is printed all the same, but whoever mistyped something wants to know
// now: files that may come later, and secrets that will stand where all can read them.
func (w *world) warn(c *config.Config, reader, document, client string) {
	if names := secretNames(c.ExecEnv); len(names) > 0 {
		fmt.Fprintf(w.stderr, "execproxy: warning: %s of the exec plugin will stand in the %s for all to read; leave it to the %s's environment\n", strings.Join(names, ", "), document, client)
	}
	if err := daemon.CheckFiles(c); err != nil {
		fmt.Fprintf(w.stderr, "execproxy: warning: %s will fail until this is mended: %s\n", reader, oneLine(err.Error()))
	}
}

// secretNames are variables of a plugin that look as if a secret stood in them.
func secretNames(env []string) (names []string) {
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		upper := strings.ToUpper(name)
		for _, part := range []string{"SECRET", "PASSWORD", "PASSWD", "TOKEN", "PRIVATE_KEY", "API_KEY"} {
			if strings.Contains(upper, part) && !strings.HasSuffix(upper, "_FILE") && !strings.HasSuffix(upper, "_PATH") && value != "" {
				names = append(names, name)
				break
			}
		}
	}
	return names
}
