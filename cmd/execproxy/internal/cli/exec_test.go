package cli

import (
	"testing"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// A client that keeps its own URLs is held to its server's path like any other: two
// clusters behind one gateway are two proxies, and neither opens the gateway itself.
func TestClientsPathIsPinned(t *testing.T) {
	for _, said := range []string{"", "https://gate/k8s/clusters/c-1/"} {
		c := &config.Config{Cluster: config.Cluster{Server: said}}
		info := &clientauthentication.ExecCredential{Spec: clientauthentication.Spec{
			LockFilePath: "/lock", Cluster: &clientauthentication.Cluster{Server: "https://gate/k8s/clusters/c-1"},
		}}
		if _, err := askFor(c, info, true); err != nil {
			t.Fatal(err)
		}
		if c.Server != "https://gate/k8s/clusters/c-1" {
			t.Errorf("%q: the proxy stands in front of %s", said, c.Server)
		}
	}
}
