package clientgo

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	pluginpolicy "k8s.io/client-go/plugin/pkg/client/auth/exec"
	"k8s.io/client-go/tools/clientcmd/api"
)

// allowed says whether a policy lets a plugin be executed, and by which path: under an
// allowlist what was looked up is what is executed (client-go's credentialPluginPolicy).
func allowed(policy api.PluginPolicy, command string) (string, error) {
	if command == "" {
		return "", fmt.Errorf("exec.command is empty: name the plugin")
	}
	if err := pluginpolicy.ValidatePluginPolicy(policy); err != nil {
		return "", fmt.Errorf("plugin policy: %w", err)
	}
	command = filepath.Clean(command)
	switch policy.PolicyType {
	case "", api.PluginPolicyAllowAll:
		return command, nil
	case api.PluginPolicyDenyAll:
		return "", fmt.Errorf("plugin %q: the plugin policy is DenyAll", command)
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return "", fmt.Errorf("plugin %q: looking it up for the plugin policy's allowlist: %w", command, err)
	}
	if slices.ContainsFunc(policy.Allowlist, func(e api.AllowlistEntry) bool {
		if e.Command == command || e.Command == path {
			return true
		}
		listed, err := exec.LookPath(e.Command)
		return err == nil && listed == path
	}) {
		return path, nil
	}
	return "", fmt.Errorf("plugin %q (%s) is not on the plugin policy's allowlist", command, path)
}
