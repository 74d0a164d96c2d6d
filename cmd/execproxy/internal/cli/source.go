package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

// execExtension is the name of a cluster's extension that client-go hands to
// exec plugins (KEP-541).
const execExtension = "client.authentication.k8s.io/exec"

// A source is where a proxy's cluster and identity came from.
type source struct {
	config    *config.Config
	context   string // names for a kubeconfig that we write
	cluster   string
	user      string
	namespace string
}

// loadSource reads the configuration; what flags, environment and file leave
// open, a kubeconfig's context says.
func (o *options) loadSource(w *world) (*source, error) {
	c, err := o.load(w, nil)
	if err != nil {
		return nil, err
	}
	s := &source{config: c}
	if c.Server != "" && o.kubeconfig == "" && o.context == "" {
		if err := o.complete(c); err != nil {
			return nil, err
		}
		u, err := config.ServerURL(c.Server)
		if err != nil {
			return nil, err
		}
		s.context, s.cluster, s.user = u.Hostname(), u.Hostname(), "execproxy@"+u.Hostname()
		return s, nil
	}
	raw, name, err := readKubeconfig(o)
	if err != nil {
		return nil, err
	}
	k, ok := raw.Contexts[name]
	switch {
	case name == "":
		return nil, errors.New("no cluster named: the kubeconfig has no current context; say --context or --server")
	case !ok:
		return nil, fmt.Errorf("context %q is not in the kubeconfig; `kubectl config get-contexts` lists them", name)
	}
	cluster, ok := raw.Clusters[k.Cluster]
	if !ok {
		return nil, fmt.Errorf("context %q names cluster %q, which is not in the kubeconfig; correct the context", name, k.Cluster)
	}
	said := c.IdentitySaid()
	doc, pair, err := describe(cluster, raw.AuthInfos[k.AuthInfo], k.AuthInfo, said)
	if err != nil {
		return nil, fmt.Errorf("context %q: %w", name, err)
	}
	ext, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	if s.config, err = o.load(w, ext); err != nil {
		return nil, err
	}
	if !said {
		s.config.KeyPEM, s.config.CertPEM = pair.key, pair.cert
	}
	if err := o.complete(s.config); err != nil {
		return nil, err
	}
	s.context, s.cluster, s.user, s.namespace = name, k.Cluster, k.AuthInfo, k.Namespace
	return s, nil
}

func readKubeconfig(o *options) (*api.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false
	rules.ExplicitPath = o.kubeconfig
	raw, err := rules.Load()
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w; name another with --kubeconfig or KUBECONFIG", err)
	}
	name := o.context
	if name == "" {
		name = raw.CurrentContext
	}
	if len(raw.Contexts) == 0 {
		files := rules.GetLoadingPrecedence()
		if !slices.ContainsFunc(files, func(f string) bool { _, err := os.Stat(f); return err == nil }) {
			return nil, "", fmt.Errorf("no kubeconfig at %s; name one with --kubeconfig or KUBECONFIG, or the cluster with --server", strings.Join(files, ", "))
		}
	}
	return raw, name, nil
}

// pemPair is a key that stands inline in a kubeconfig. It stays in memory.
type pemPair struct{ key, cert []byte }

// describe says in the words of the exec extension what a kubeconfig says of a
// cluster and a user.
func describe(k *api.Cluster, u *api.AuthInfo, user string, identitySaid bool) (map[string]any, pemPair, error) {
	if ext, ok := k.Extensions[execExtension].(*runtime.Unknown); ok && len(ext.Raw) > 0 && isOurs(ext.Raw) {
		doc := map[string]any{}
		if err := json.Unmarshal(ext.Raw, &doc); err != nil {
			return nil, pemPair{}, fmt.Errorf("its exec extension is not an object: %w", err)
		}
		if identitySaid {
			withoutIdentity(doc)
		} else if what := identityOfExec(u); what != "" {
			return nil, pemPair{}, otherwiseSaid(user, what)
		}
		return doc, pemPair{}, nil
	}
	if doc, ok := toldByArguments(u); ok {
		if identitySaid {
			withoutIdentity(doc)
		} else if what := identityOfExec(&api.AuthInfo{Exec: &api.ExecConfig{Env: u.Exec.Env}}); what != "" {
			return nil, pemPair{}, otherwiseSaid(user, what)
		}
		return doc, pemPair{}, nil
	}
	up := map[string]any{"server": k.Server}
	put := func(name string, v any, set bool) {
		if set {
			up[name] = v
		}
	}
	put("certificate-authority-data", k.CertificateAuthorityData, len(k.CertificateAuthorityData) > 0)
	put("certificate-authority", k.CertificateAuthority, k.CertificateAuthority != "" && len(k.CertificateAuthorityData) == 0)
	put("tls-server-name", k.TLSServerName, k.TLSServerName != "")
	put("insecure-skip-tls-verify", true, k.InsecureSkipTLSVerify)
	put("proxy-url", k.ProxyURL, k.ProxyURL != "")
	put("disable-compression", true, k.DisableCompression)
	doc := map[string]any{"upstream": up}
	if identitySaid {
		return doc, pemPair{}, nil
	}
	_, foreign := k.Extensions[execExtension]
	pair, err := describeUser(doc, u, user, foreign)
	return doc, pair, err
}

// tellByArguments puts what the extension says into the plugin's arguments, for
// clients that hand their plugin nothing of the cluster.
func tellByArguments(k *api.Config, s *source, c *config.Config) {
	k.Clusters[s.cluster].Extensions = nil
	plugin := k.AuthInfos[s.user].Exec
	plugin.ProvideClusterInfo = false
	plugin.Args = append(plugin.Args, c.Arguments()...)
}

// toldByArguments reads a kubeconfig of ours that says all in its plugin's arguments.
// Its port is that of the plugin's proxy.
func toldByArguments(u *api.AuthInfo) (map[string]any, bool) {
	if u == nil || u.Exec == nil || len(u.Exec.Args) == 0 || u.Exec.Args[0] != "exec" {
		return nil, false
	}
	doc, ok := config.FromArguments(u.Exec.Args[1:])
	delete(doc, "listen")
	return doc, ok
}

func otherwiseSaid(user, what string) error {
	return fmt.Errorf("user %q gives its plugin %s, without which this would be somebody else; say who you are here too, with --auth and its flags", user, what)
}

func withoutIdentity(doc map[string]any) {
	for _, f := range config.InGroups(config.GroupIdentity, config.GroupKey, config.GroupRenew, config.GroupSigner) {
		delete(doc, f.JSON())
	}
}

// isOurs tells our extension from another plugin's.
func isOurs(raw []byte) bool {
	var probe struct {
		Upstream *json.RawMessage `json:"upstream"`
	}
	return json.Unmarshal(raw, &probe) == nil && probe.Upstream != nil
}

// identityOfExec names what a kubeconfig's user tells the plugin in other ways
// than the extension, and what bears on who or where we are; the first of it.
func identityOfExec(u *api.AuthInfo) string {
	if u == nil || u.Exec == nil {
		return ""
	}
	for _, arg := range u.Exec.Args {
		name, _, _ := strings.Cut(arg, "=")
		for _, f := range config.InGroups(config.GroupIdentity, config.GroupKey, config.GroupRenew, config.GroupSigner, config.GroupCluster, config.GroupPolicy, config.GroupFile) {
			if name == "--"+f.Flag {
				return name
			}
		}
	}
	for _, e := range u.Exec.Env {
		for _, prefix := range []string{"AWS_", "EXECPROXY_", "HOME"} {
			if strings.HasPrefix(e.Name, prefix) {
				return e.Name
			}
		}
	}
	return ""
}

func describeUser(doc map[string]any, u *api.AuthInfo, name string, foreign bool) (pemPair, error) {
	const cure = "name an identity with --auth"
	switch {
	case u == nil:
		return pemPair{}, fmt.Errorf("user %q is not in the kubeconfig; %s", name, cure)
	case u.Impersonate != "" || len(u.ImpersonateGroups) > 0:
		return pemPair{}, fmt.Errorf("user %q impersonates (`as`), which a proxy does not do for its clients; give --as to kubectl", name)
	case len(u.ClientKeyData) > 0 && len(u.ClientCertificateData) > 0:
		doc["auth"] = config.AuthMTLS
		return pemPair{u.ClientKeyData, u.ClientCertificateData}, nil
	case u.ClientKey != "" && u.ClientCertificate != "":
		doc["auth"], doc["key"], doc["cert"] = config.AuthMTLS, u.ClientKey, u.ClientCertificate
		return pemPair{}, nil
	case u.ClientKey != "" || u.ClientCertificate != "" || len(u.ClientKeyData) > 0 || len(u.ClientCertificateData) > 0:
		return pemPair{}, fmt.Errorf("user %q mixes files and inline data, or has only one half of a pair; say --auth mtls --key FILE --cert FILE", name)
	case u.TokenFile != "":
		return pemPair{}, fmt.Errorf("user %q has a token file; write \"Bearer TOKEN\" into a file of mode 0600 and say --auth headers --header Authorization=@FILE", name)
	case u.Token != "":
		doc["auth"], doc["headers"] = config.AuthHeaders, []string{"Authorization=Bearer " + u.Token}
		return pemPair{}, nil
	case u.Exec != nil:
		return pemPair{}, describeExec(doc, u.Exec, name, foreign)
	}
	return pemPair{}, fmt.Errorf("user %q has no client certificate; %s", name, cure)
}
