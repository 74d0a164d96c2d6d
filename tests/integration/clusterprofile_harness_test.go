//go:build linux

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	kubeconfig "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/cluster-inventory-api/client/clientset/versioned"
	"sigs.k8s.io/cluster-inventory-api/pkg/access"

	"github.com/execproxy/execproxy/proxy/client/clientgo"
)

// What a ClusterProfile may say to a plugin (KEP-5339).
const (
	execExtension = "client.authentication.k8s.io/exec"
	argsExtension = "clusterprofiles.multicluster.x-k8s.io/exec/additional-args"
	envsExtension = "clusterprofiles.multicluster.x-k8s.io/exec/additional-envs"
)

// inventory is a client of the cluster's ClusterProfiles, whose real definition is
// installed by the first that asks.
func inventory(t *testing.T) *versioned.Clientset {
	t.Helper()
	c, err := installInventory()
	must(t, err)
	return c
}

var installInventory = sync.OnceValues(func() (*versioned.Clientset, error) {
	const module = "sigs.k8s.io/cluster-inventory-api"
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", module, err)
	}
	crd, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/bases/multicluster.x-k8s.io_clusterprofiles.yaml"))
	if err != nil {
		return nil, err
	}
	hc, err := suite.cluster.AdminClient()
	if err != nil {
		return nil, err
	}
	resp, err := hc.Post(suite.cluster.API.URL+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/yaml", bytes.NewReader(crd))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("creating the CustomResourceDefinition: %s: %s", resp.Status, body)
	}
	return versioned.NewForConfigAndClient(&rest.Config{Host: suite.cluster.API.URL, QPS: -1}, hc)
})

// profile makes a ClusterProfile whose only access provider is named, in the cluster,
// and returns it as a controller reads it there.
func profile(t *testing.T, ns, name, provider string, k kubeconfig.Cluster) *v1alpha1.ClusterProfile {
	t.Helper()
	p, err := createProfile(t.Context(), inventory(t), ns, name, provider, k)
	must(t, err)
	return p
}

func createProfile(ctx context.Context, c *versioned.Clientset, ns, name, provider string, k kubeconfig.Cluster) (*v1alpha1.ClusterProfile, error) {
	profiles := c.ApisV1alpha1().ClusterProfiles(ns)
	p := &v1alpha1.ClusterProfile{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterProfileSpec{ClusterManager: v1alpha1.ClusterManager{Name: "test"}}}
	var err error
	if p, err = profiles.Create(ctx, p, metav1.CreateOptions{}); kerrors.IsNotFound(err) {
		return nil, fmt.Errorf("the definition is not served yet: %w", err)
	} else if err != nil {
		return nil, err
	}
	p.Status.AccessProviders = []v1alpha1.AccessProvider{{Name: provider, Cluster: k}}
	if _, err = profiles.UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return profiles.Get(ctx, name, metav1.GetOptions{})
}

// awaitInventory waits until ClusterProfiles are served.
func awaitInventory(t *testing.T) {
	t.Helper()
	c := inventory(t)
	eventually(t, patience, func() error {
		_, err := c.ApisV1alpha1().ClusterProfiles("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// realCluster is what a profile says of the real API server, and to our plugin.
func realCluster(server string, extensions map[string]any) kubeconfig.Cluster {
	k := kubeconfig.Cluster{Server: server, CertificateAuthorityData: suite.cluster.CA.PEM}
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		raw, err := json.Marshal(extensions[name])
		if err != nil {
			panic(err)
		}
		k.Extensions = append(k.Extensions, kubeconfig.NamedExtension{Name: name, Extension: runtime.RawExtension{Raw: raw}})
	}
	return k
}

// localCluster is the cluster of a kubeconfig that execproxy printed, and its exec
// extension.
func localCluster(t *testing.T, printed []byte) (*api.Cluster, []byte) {
	t.Helper()
	config, err := clientcmd.Load(printed)
	must(t, err)
	for _, k := range config.Clusters {
		if x, ok := k.Extensions[execExtension].(*runtime.Unknown); ok {
			return k, x.Raw
		}
	}
	t.Fatalf("no exec extension in %s", printed)
	return nil, nil
}

// provider is an access provider that runs the program under test, in this home.
func (h *home) provider(name string, args ...string) access.Provider {
	p := access.Provider{Name: name, ExecConfig: &api.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: h.bin, Args: append([]string{"exec"}, args...), ProvideClusterInfo: true,
	}}
	h.inhabit(&p)
	return p
}

// inhabit has a provider's plugin live in this home.
func (h *home) inhabit(p *access.Provider) {
	for _, k := range slices.Sorted(maps.Keys(h.env)) {
		p.ExecConfig.Env = append(p.ExecConfig.Env, api.ExecEnvVar{Name: k, Value: h.env[k]})
	}
}

// providerFile writes providers as the library reads them, and has it read them.
func (h *home) providerFile(providers ...access.Provider) *access.Config {
	h.t.Helper()
	data, err := json.Marshal(access.Config{Providers: providers})
	must(h.t, err)
	c, err := access.NewFromFile(h.file("providers.json", string(data)))
	must(h.t, err)
	return c
}

// resolver is a controller's; its proxies end with the test.
func resolver(t *testing.T) *clientgo.Resolver {
	r := clientgo.New(clientgo.Options{})
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// enter builds a rest.Config of a profile, with the real library, and a client over
// our adapter of it.
func enter(t *testing.T, r *clientgo.Resolver, c *access.Config, p *v1alpha1.ClusterProfile) (*kubernetes.Clientset, error) {
	t.Helper()
	config, err := c.BuildConfigFromCP(p)
	must(t, err)
	config.QPS = -1
	res, err := r.Resolve(t.Context(), config)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfigAndClient(res.Config, res.HTTPClient)
}

// profileUser is who the API server takes a controller for, or its error.
func profileUser(t *testing.T, r *clientgo.Resolver, c *access.Config, p *v1alpha1.ClusterProfile) (string, error) {
	t.Helper()
	cs, err := enter(t, r, c, p)
	if err != nil {
		return "", err
	}
	return whoAmI(t.Context(), cs)
}
