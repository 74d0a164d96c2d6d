//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/execproxy/execproxy/proxy/client/clientgo"
)

// pluginCalls counts executions of plugins, and what found no proxy.
type pluginCalls struct{ well, failed, errors atomic.Int64 }

func (c *pluginCalls) ExecPluginWithProxyCall(code int, status string) {
	if code == 0 && status == "no_error" {
		c.well.Add(1)
		return
	}
	c.failed.Add(1)
}

func (c *pluginCalls) ExecProxyError() { c.errors.Add(1) }

// inHome has the plugin of a rest.Config run in this home.
func (h *home) inHome(config *rest.Config) *rest.Config {
	for name, value := range h.env {
		config.ExecProvider.Env = append(config.ExecProvider.Env, clientcmdapi.ExecEnvVar{Name: name, Value: value})
	}
	return config
}

// execConfig is a rest.Config of the cluster itself with an exec section.
func (h *home) execConfig(server string, extension object) *rest.Config {
	h.t.Helper()
	raw, err := json.Marshal(extension)
	must(h.t, err)
	return h.inHome(&rest.Config{
		Host: server, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: suite.cluster.CA.PEM},
		ExecProvider: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: h.bin, Args: []string{"exec"}, ProvideClusterInfo: true,
			InteractiveMode: clientcmdapi.IfAvailableExecInteractiveMode, Config: &runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON},
		},
	})
}

// execConfigFor is a rest.Config as it comes about: of the cluster's own, with a certificate
// or a signature, or read from what `execproxy kubeconfig` prints.
func (h *home) execConfigFor(way string) *rest.Config {
	h.t.Helper()
	if way == "sigv4" {
		h.sharedCredentials()
		return h.execConfig(newFrontProxy(h.t, "127.0.0.1").URL, sigv4Config())
	}
	cert, key := h.user("jane", "dev")
	if way == "mtls" {
		return h.execConfig(suite.cluster.API.URL, mtls(cert, key))
	}
	config, err := clientcmd.BuildConfigFromFlags("", h.proxied("--kubeconfig", h.kubeconfig("plain", suite.cluster.API.URL, cert, key)))
	must(h.t, err)
	return h.inHome(config)
}

func (h *home) resolver(m clientgo.Metrics) *clientgo.Resolver {
	h.t.Helper()
	r := clientgo.New(clientgo.Options{Metrics: m})
	h.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			h.t.Error(err)
		}
	})
	return r
}

func (h *home) resolve(config *rest.Config) (*clientgo.Resolved, *pluginCalls) {
	h.t.Helper()
	calls := new(pluginCalls)
	res, err := h.resolver(calls).Resolve(h.t.Context(), config)
	must(h.t, err)
	return res, calls
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// TestClientGo: every kind of client of client-go, for a rest.Config of the cluster's own
// and for one that is read from what `execproxy kubeconfig` prints.
func TestClientGo(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"mtls", "sigv4", "kubeconfig"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			h, ns, ctx := newHome(t), namespace(t), t.Context()
			config, user := h.execConfigFor(way), "jane"
			if way == "sigv4" {
				user = "arn:aws:iam::1:user/jane"
			}
			res, calls := h.resolve(config)
			c, err := kubernetes.NewForConfigAndClient(res.Config, res.HTTPClient)
			must(t, err)
			if got, err := whoAmI(ctx, c); err != nil || got != user {
				t.Fatalf("the API server sees %q, %v; want %s", got, err, user)
			}
			watch, err := c.CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{})
			must(t, err)
			defer watch.Stop()
			_, err = c.CoreV1().ConfigMaps(ns).Create(ctx, configMap("a", "1"), metav1.CreateOptions{})
			must(t, err)
			select {
			case e := <-watch.ResultChan():
				if m, ok := e.Object.(*core.ConfigMap); !ok || m.Name != "a" {
					t.Errorf("watched %v", e)
				}
			case <-time.After(patience):
				t.Error("the watch stands still")
			}

			dyn, err := dynamic.NewForConfigAndClient(res.Config, res.HTTPClient)
			must(t, err)
			if m, err := dyn.Resource(configMaps).Namespace(ns).Get(ctx, "a", metav1.GetOptions{}); err != nil || m.GetName() != "a" {
				t.Errorf("the dynamic client: %v, %v", m, err)
			}
			meta, err := metadata.NewForConfigAndClient(res.Config, res.HTTPClient)
			must(t, err)
			if m, err := meta.Resource(configMaps).Namespace(ns).Get(ctx, "a", metav1.GetOptions{}); err != nil || m.Name != "a" {
				t.Errorf("the metadata client: %v, %v", m, err)
			}
			disco, err := discovery.NewDiscoveryClientForConfigAndClient(res.Config, res.HTTPClient)
			must(t, err)
			if lists, err := disco.ServerPreferredResources(); err != nil || len(lists) == 0 {
				t.Errorf("discovery: %v, %v", lists, err)
			}

			// A rest.Config alone is enough, and may be made another user's.
			if way != "sigv4" {
				bob := rest.CopyConfig(res.Config)
				bob.Impersonate.UserName = "bob"
				c, err = kubernetes.NewForConfig(bob)
				must(t, err)
				if got, err := whoAmI(ctx, c); err != nil || got != "bob" {
					t.Errorf("as bob the API server sees %q, %v", got, err)
				}
			}
			if n := calls.well.Load(); n != 1 || calls.failed.Load() != 0 || calls.errors.Load() != 0 {
				t.Errorf("the plugin was executed %d times, failed %d times; %d errors", n, calls.failed.Load(), calls.errors.Load())
			}
			if p := h.proxy(); p.Handshakes.Full != 1 {
				t.Errorf("%d full handshakes with the API server, want 1: %+v", p.Handshakes.Full, p)
			}
		})
	}
}

// journal is what an informer told of.
type journal struct {
	mu     sync.Mutex
	events map[string]int
}

func (j *journal) note(verb string, o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	m := o.(*core.ConfigMap)
	j.mu.Lock()
	j.events[verb+" "+m.Name+"="+m.Data["k"]]++
	j.mu.Unlock()
}

// await waits until all of these events have been told of.
func (j *journal) await(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, patience, func() error {
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, w := range want {
			if j.events[w] == 0 {
				return fmt.Errorf("not informed of %q, only of %v", w, j.events)
			}
		}
		return nil
	})
}

// TestClientGoInformer: the proxy is killed under an informer, more than once. The informer
// goes on with a new one that was started once, and misses nothing that happened
// meanwhile.
func TestClientGoInformer(t *testing.T) {
	t.Parallel()
	h, ns, ctx := newHome(t), namespace(t), t.Context()
	cert, key := h.user("jane", "dev")
	res, calls := h.resolve(h.execConfig(suite.cluster.API.URL, mtls(cert, key)))
	c, err := kubernetes.NewForConfigAndClient(res.Config, res.HTTPClient)
	must(t, err)
	j := &journal{events: map[string]int{}}
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace(ns))
	informer := factory.Core().V1().ConfigMaps().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { j.note("add", o) },
		UpdateFunc: func(_, o any) { j.note("update", o) },
		DeleteFunc: func(o any) { j.note("delete", o) },
	})
	must(t, err)
	stop := make(chan struct{})
	factory.Start(stop)
	t.Cleanup(factory.Shutdown)
	t.Cleanup(func() { close(stop) })
	admin := suite.admin.CoreV1().ConfigMaps(ns)
	change := func(name, value string) {
		t.Helper()
		_, err := admin.Update(ctx, configMap(name, value), metav1.UpdateOptions{})
		if err != nil {
			_, err = admin.Create(ctx, configMap(name, value), metav1.CreateOptions{})
		}
		must(t, err)
	}
	change("stays", "0")
	j.await(t, "add stays=0")
	const rounds = 3
	for round := 1; round <= rounds; round++ {
		value, goes := fmt.Sprint(round), fmt.Sprint("goes", round)
		change(goes, "x")
		j.await(t, "add "+goes+"=x")
		for pid := range processes(h.dir) {
			must(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		change("stays", value)
		change("comes"+value, value)
		must(t, admin.Delete(ctx, goes, metav1.DeleteOptions{}))
		j.await(t, "update stays="+value, "add comes"+value+"="+value, "delete "+goes+"=x")
		if n := calls.well.Load(); n != int64(round)+1 || calls.failed.Load() != 0 {
			t.Errorf("after %d deaths the plugin was executed %d times and failed %d times", round, n, calls.failed.Load())
		}
	}
	// What was told is what is there.
	keys := informer.GetStore().ListKeys()
	slices.Sort(keys)
	want := []string{ns + "/comes1", ns + "/comes2", ns + "/comes3", ns + "/stays"}
	if !slices.Equal(keys, want) {
		t.Errorf("the informer has %q, want %q", keys, want)
	}
	if p := h.proxy(); p.Requests == 0 {
		t.Errorf("the last proxy saw nothing: %+v", p)
	}
}

// TestClientGoShared: a thousand resolutions of one cluster are one proxy, one lock and one
// connection to the API server; and their end is the proxy's.
func TestClientGoShared(t *testing.T) {
	t.Parallel()
	h, ctx := newHome(t), t.Context()
	cert, key := h.user("jane", "dev")
	calls := new(pluginCalls)
	r := h.resolver(calls)
	var all []*clientgo.Resolved
	for i := range 1000 {
		config := h.execConfig(suite.cluster.API.URL, mtls(cert, key)) // its environment in another order each time
		config.UserAgent = fmt.Sprint("controller-", i)
		res, err := r.Resolve(ctx, config)
		must(t, err)
		all = append(all, res)
		if i%50 == 0 {
			resp, err := res.HTTPClient.Get(res.Config.Host + "/version")
			must(t, err)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("GET /version: %s", resp.Status)
			}
		}
	}
	if n := calls.well.Load(); n != 1 {
		t.Errorf("the plugin was executed %d times, want once", n)
	}
	if p := h.proxy(); p.Handshakes.Full != 1 || p.Requests != 20 {
		t.Errorf("%d full handshakes and %d requests, want 1 and 20", p.Handshakes.Full, p.Requests)
	}
	socket := h.proxy().Socket
	for _, res := range all {
		must(t, res.Close())
	}
	h.gone(socket, time.Second)
}

// TestClientGoPath: a cluster below a path, as behind a gateway. The client's own URLs have
// it, and it goes upstream once.
func TestClientGoPath(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	res, _ := h.resolve(h.execConfig(u.url+"/k8s/clusters/c-1/", mtls(cert, key)))
	c, err := discovery.NewDiscoveryClientForConfigAndClient(res.Config, res.HTTPClient)
	must(t, err)
	_, _ = c.ServerVersion() // the answer is no API server's
	if s := u.last(t, ""); s.target != "/k8s/clusters/c-1/version" || s.user != "jane" {
		t.Errorf("the upstream saw %s of %q", s.target, s.user)
	}
}
