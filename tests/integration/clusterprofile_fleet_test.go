//go:build linux

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	kubeconfig "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
)

// TestClusterProfileFleet: a hundred profiles of fifty identities, entered by two
// controllers at once: each request is made by whom its profile says, there is one
// proxy for each identity, each is small, and all end with their controllers.
func TestClusterProfileFleet(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	const profiles, identities, workers = 100, 50, 8
	h, ns := newHome(t), namespace(t)
	api := inventory(t)
	fleet := make([]*v1alpha1.ClusterProfile, profiles)
	clusters := make([]kubeconfig.Cluster, identities)
	for i := range clusters {
		clusters[i] = realCluster(suite.cluster.API.URL, map[string]any{execExtension: mtls(h.user(fmt.Sprint("fleet-", i)))})
	}
	each(profiles, workers, func(i int) error {
		var err error
		fleet[i], err = createProfile(t.Context(), api, ns, fmt.Sprint("p", i), "fleet", clusters[i%identities])
		return err
	}, t)
	c := h.providerFile(h.provider("fleet", "--provider=fleet"))
	first, second := resolver(t), resolver(t)
	each(2*profiles, workers, func(i int) error {
		r := first
		if i%2 == 1 {
			r = second
		}
		want := fmt.Sprint("fleet-", i/2%identities)
		config, err := c.BuildConfigFromCP(fleet[i/2])
		if err != nil {
			return err
		}
		res, err := r.Resolve(t.Context(), config)
		if err != nil {
			return err
		}
		for range 3 {
			if user, err := whoAmI(t.Context(), clientset(t, config.Host, res.HTTPClient.Transport)); err != nil || user != want {
				return fmt.Errorf("profile %d: the API server sees %q, %v; want %s", i/2, user, err, want)
			}
		}
		return nil
	}, t)
	running := h.status()
	if len(running) != identities {
		t.Errorf("%d proxies run, want one for each of %d identities", len(running), identities)
	}
	var memory int64
	obtained := 0
	for _, s := range running {
		rss := memoryOf(t, s.PID, "VmRSS")
		memory += rss
		if rss > bound(64<<20) {
			t.Errorf("proxy %s holds %d MiB", s.Identity, rss>>20)
		}
		if files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID)); err == nil && len(files) > 40 {
			t.Errorf("proxy %s has %d descriptors", s.Identity, len(files))
		}
		if s.Handshakes.Full != 1 || s.Requests != 12 || !strings.Contains(s.Identity, "fleet-") {
			t.Errorf("%+v; want 12 requests of its own over one connection", s)
		}
		for _, o := range s.Obtentions {
			if o.Provider != "fleet" || o.Error != 0 {
				t.Errorf("%s: %+v", s.Identity, o)
			}
			obtained += o.Success
		}
	}
	if obtained != 2*identities {
		t.Errorf("%d documents were obtained; want one for each controller and identity, %d", obtained, 2*identities)
	}
	t.Logf("%d profiles, %d proxies, %d MiB together", profiles, len(running), memory>>20)
	must(t, first.Close())
	if n := len(processes(h.dir)); n != identities {
		t.Errorf("%d proxies run for the second controller", n)
	}
	must(t, second.Close())
	eventually(t, patience, func() error {
		if left := processes(h.dir); len(left) > 0 {
			return fmt.Errorf("%d proxies are left after their controllers", len(left))
		}
		return nil
	})
}

// each calls f for 0 to n-1, some at a time, and fails the test with its errors.
func each(n, workers int, f func(int) error, t *testing.T) {
	t.Helper()
	next := make(chan int)
	errs := make(chan error, n)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := range next {
				errs <- f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// TestClusterProfileExample: the controller that docs/clusterprofile.md shows a part of.
func TestClusterProfileExample(t *testing.T) {
	t.Parallel()
	awaitInventory(t)
	h, ns := newHome(t), namespace(t)
	profile(t, ns, "prod", "fleet", realCluster(suite.cluster.API.URL, nil))
	profile(t, ns, "stage", "fleet", realCluster(strings.Replace(suite.cluster.API.URL, "127.0.0.1", "localhost", 1), nil))
	profile(t, ns, "theirs", "another", realCluster(suite.cluster.API.URL, nil))
	cert, key := h.user("jane", "dev")
	file := h.file("fleet.json", h.execproxy("kubeconfig", "--cluster-profile-provider", "fleet", "--command", h.bin, "--cert", cert, "--key", key).ok(t))
	admin := h.kubeconfig("hub", suite.cluster.API.URL, suite.cluster.Dir+"/admin.crt", suite.cluster.Dir+"/admin.key")
	bin := h.path("fleet")
	if out, err := exec.Command("go", "build", "-o", bin, "./examples/fleet").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out := h.run(bin, "-kubeconfig", admin, "-namespace", ns, "-clusterprofile-provider-file", file).ok(t)
	const want = "prod jane\nstage jane\ntheirs error: no matching cluster accessor found for cluster profile \"theirs\"\n"
	if out != want {
		t.Errorf("printed\n%s\nwant\n%s", out, want)
	}
	eventually(t, patience, func() error {
		if left := processes(h.dir); len(left) > 0 {
			return fmt.Errorf("%v outlived the controller", left)
		}
		return nil
	})
	page, err := os.ReadFile("../../docs/clusterprofile.md")
	must(t, err)
	source, err := os.ReadFile("examples/fleet/main.go")
	must(t, err)
	_, shown, _ := strings.Cut(string(source), "// docs:begin\n")
	shown, _, ok := strings.Cut(shown, "\n// docs:end")
	if !ok || !strings.Contains(string(page), shown) {
		t.Error("docs/clusterprofile.md does not show what the example does")
	}
}
