package cli

import (
	"encoding/json"
	"errors"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// A providerFile is what sigs.k8s.io/cluster-inventory-api/pkg/access reads, in the
// words of KEP-5339.
type providerFile struct {
	Providers []accessProvider `json:"providers"`
}

type accessProvider struct {
	Name                        string       `json:"name"`
	ExecConfig                  providerExec `json:"execConfig"`
	ProfileSourcedCLIArgsPolicy string       `json:"profileSourcedCLIArgsPolicy"`
	ProfileSourcedEnvVarsPolicy string       `json:"profileSourcedEnvVarsPolicy"`
}

type providerExec struct {
	APIVersion         string   `json:"apiVersion"`
	Command            string   `json:"command"`
	Args               []string `json:"args"`
	InstallHint        string   `json:"installHint"`
	InteractiveMode    string   `json:"interactiveMode"`
	ProvideClusterInfo bool     `json:"provideClusterInfo"`
}

// ignore is the policy of both for what a profile adds: the library hands one
// profile's arguments to the next, and either could name files and programs here.
const ignore = "Ignore"

// printProvider prints the provider file of a controller that reaches the clusters of
// its ClusterProfiles through execproxy. Who we are is said in it; where to, in the
// profiles.
func (o *options) printProvider(w *world) error {
	for _, name := range []string{"kubeconfig", "context"} {
		if o.set.Changed(name) {
			return usagef("--%s has no meaning with --cluster-profile-provider: the ClusterProfiles name the clusters; leave it out", name)
		}
	}
	if o.set.Changed("provide-cluster-info") {
		return usagef("--provide-cluster-info has no meaning with --cluster-profile-provider: a controller always tells its plugin of the cluster; leave it out")
	}
	for _, f := range config.InGroups(config.GroupCluster, config.GroupListen) {
		if o.set.Changed(f.Flag) {
			return usagef("--%s has no meaning with --cluster-profile-provider: the ClusterProfiles name the clusters; leave it out", f.Flag)
		}
	}
	c, err := o.load(w, nil)
	if err != nil {
		return err
	}
	if c.Server != "" {
		return errors.New("server: the file or EXECPROXY_SERVER names a cluster, which the ClusterProfiles do; unset it")
	}
	service, cluster := c.AWSService, c.EKSCluster
	if c.Auth == config.AuthEKSToken && cluster == "" {
		c.EKSCluster = "PROFILE" // which names it
	}
	if err := c.CompleteIdentity(); err != nil {
		return o.usage(err)
	}
	c.AWSService, c.EKSCluster = service, cluster // a default said is one that no profile can replace
	if err := printable(c); err != nil {
		return err
	}
	for _, f := range config.Fields {
		if f.Flag == "provider" {
			if err := f.Set(c, o.provider, ""); err != nil {
				return usagef("--cluster-profile-provider: %w", err)
			}
		}
	}
	command, err := o.pluginCommand()
	if err != nil {
		return err
	}
	w.warn(c, "the controller", "provider file", "controller")
	args := []string{"exec", "--provider=" + o.provider, "--extension-policy=" + config.ExtensionCluster}
	if o.direct {
		if err := daemon.CheckDirect(c); err != nil {
			return o.usage(err)
		}
		args = append(args, "--direct")
	}
	args = append(args, c.Arguments(config.GroupCluster)...)
	out := json.NewEncoder(w.stdout)
	out.SetEscapeHTML(false) // the URI of a key on a token may have an &
	out.SetIndent("", "  ")
	return out.Encode(providerFile{[]accessProvider{{
		Name: o.provider,
		ExecConfig: providerExec{
			APIVersion: clientauthentication.V1, Command: command, Args: args,
			InstallHint: installHint, InteractiveMode: "Never", ProvideClusterInfo: true,
		},
		ProfileSourcedCLIArgsPolicy: ignore, ProfileSourcedEnvVarsPolicy: ignore,
	}}})
}
