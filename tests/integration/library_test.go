//go:build linux

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/execproxy/execproxy/proxy/client"
)

// namespace makes one with a name nobody else uses.
func namespace(t *testing.T) string {
	t.Helper()
	ns, err := suite.admin.CoreV1().Namespaces().Create(t.Context(),
		&core.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	must(t, err)
	return ns.Name
}

func configMap(name, value string) *core.ConfigMap {
	return &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": value}}
}

// libraryRole is a client of our library as user, in this home.
func (h *home) libraryRole(server string, ca []byte, config object) clientRole {
	h.t.Helper()
	raw, err := json.Marshal(config)
	must(h.t, err)
	return clientRole{Command: h.bin, Server: server, CA: ca, Config: raw}
}

// library opens a client of our library in this process, but in this home.
func (h *home) library(server string, ca []byte, config object) *client.Client {
	h.t.Helper()
	o := h.libraryRole(server, ca, config).options()
	o.Env = h.command("true").Env
	c, err := client.New(o)
	must(h.t, err)
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// clientset is client-go over any transport.
func clientset(t *testing.T, server string, transport http.RoundTripper) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: server, QPS: -1}, &http.Client{Transport: transport})
	must(t, err)
	return c
}

// whoAmI asks the API server who it takes the client for.
func whoAmI(ctx context.Context, c *kubernetes.Clientset) (string, error) {
	r, err := c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.UserInfo.Username, nil
}

func TestLibrary(t *testing.T) {
	t.Parallel()
	h, ctx, ns := newHome(t), t.Context(), namespace(t)
	server := suite.cluster.API.URL
	lib := h.library(server, suite.cluster.CA.PEM, mtls(h.user("jane", "dev")))
	c := clientset(t, server, lib.RoundTripper())

	if user, err := whoAmI(ctx, c); err != nil || user != "jane" {
		t.Fatalf("the API server sees %q, %v; want jane", user, err)
	}
	maps := c.CoreV1().ConfigMaps(ns)
	watch, err := maps.Watch(ctx, metav1.ListOptions{})
	must(t, err)
	_, err = maps.Create(ctx, configMap("a", "1"), metav1.CreateOptions{})
	must(t, err)
	patched, err := maps.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"data":{"k":"2"}}`), metav1.PatchOptions{})
	must(t, err)
	if patched.Data["k"] != "2" {
		t.Errorf("patched to %q", patched.Data["k"])
	}
	got, err := maps.Get(ctx, "a", metav1.GetOptions{})
	must(t, err)
	if got.ResourceVersion != patched.ResourceVersion {
		t.Errorf("got version %s, patched to %s", got.ResourceVersion, patched.ResourceVersion)
	}
	list, err := maps.List(ctx, metav1.ListOptions{})
	must(t, err)
	if len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Errorf("listed %v", list.Items)
	}
	must(t, maps.Delete(ctx, "a", metav1.DeleteOptions{}))
	var events []string
	for len(events) < 3 {
		select {
		case e, open := <-watch.ResultChan():
			if !open {
				t.Fatalf("the watch ended after %v", events)
			}
			events = append(events, string(e.Type))
		case <-time.After(patience):
			t.Fatalf("the watch stands still after %v", events)
		}
	}
	watch.Stop()
	if want := []string{"ADDED", "MODIFIED", "DELETED"}; !slices.Equal(events, want) {
		t.Errorf("watched %v, want %v", events, want)
	}
	if p := h.proxy(); p.Handshakes.Full != 1 {
		t.Errorf("%d full handshakes with the API server, want 1: %+v", p.Handshakes.Full, p)
	}

	credential, err := lib.Credential(ctx)
	must(t, err)
	socket, err := credential.Status.ProxyConfig.SocketPath()
	must(t, err)
	must(t, lib.Close())
	h.gone(socket, time.Second)
}

// forgetLock removes the lock file that a killed client could not remove.
func (h *home) forgetLock() {
	h.t.Helper()
	dirs, err := filepath.Glob(h.path("tmp/*/lock"))
	must(h.t, err)
	if len(dirs) != 1 {
		h.t.Errorf("a killed client left %q, want one lock file", dirs)
	}
	for _, lock := range dirs {
		must(h.t, os.Remove(lock))
		must(h.t, os.Remove(filepath.Dir(lock)))
	}
}

// gone waits until this home has neither a process nor the socket any more.
func (h *home) gone(socket string, limit time.Duration) {
	h.t.Helper()
	eventually(h.t, limit, func() error {
		if left := processes(h.dir); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		if _, err := os.Lstat(socket); !os.IsNotExist(err) {
			return fmt.Errorf("socket %s is still there (%v)", socket, err)
		}
		return nil
	})
}

func TestInformer(t *testing.T) {
	t.Parallel()
	h, ctx, ns := newHome(t), t.Context(), namespace(t)
	server := suite.cluster.API.URL
	lib := h.library(server, suite.cluster.CA.PEM, mtls(h.user("jane", "dev")))
	c := clientset(t, server, lib.RoundTripper())
	_, err := suite.admin.CoreV1().ConfigMaps(ns).Create(ctx, configMap("before", "1"), metav1.CreateOptions{})
	must(t, err)

	events := make(chan string, 100)
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace(ns))
	informer := factory.Core().V1().ConfigMaps().Informer()
	name := func(verb string, o any) { events <- verb + " " + o.(*core.ConfigMap).Name }
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { name("add", o) },
		UpdateFunc: func(_, o any) { name("update", o) },
		DeleteFunc: func(o any) { name("delete", o) },
	})
	must(t, err)
	stop := make(chan struct{})
	factory.Start(stop)
	t.Cleanup(factory.Shutdown)
	t.Cleanup(func() { close(stop) })

	expect := func(want string) {
		t.Helper()
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("informed of %q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("not informed of %q", want)
		}
	}
	expect("add before")
	admin := suite.admin.CoreV1().ConfigMaps(ns)
	_, err = admin.Create(ctx, configMap("live", "1"), metav1.CreateOptions{})
	must(t, err)
	expect("add live")
	_, err = admin.Update(ctx, configMap("live", "2"), metav1.UpdateOptions{})
	must(t, err)
	expect("update live")
	must(t, admin.Delete(ctx, "live", metav1.DeleteOptions{}))
	expect("delete live")
}

// TestClientKilled: the proxy ends with its client, however that ends.
func TestClientKilled(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	role := h.libraryRole(suite.cluster.API.URL, suite.cluster.CA.PEM, mtls(h.user("jane", "dev")))
	argument, err := json.Marshal(role)
	must(t, err)
	const rounds, limit = 20, time.Second
	var took []time.Duration
	for range rounds {
		b := h.startCmd(h.role(roleClient, string(argument)))
		out := b.stdout.await(t, "\n")
		socket := strings.TrimSpace(strings.TrimPrefix(out, "ready "))
		if _, err := os.Stat(socket); err != nil {
			t.Fatalf("while the client lives: %v", err)
		}
		left := processes(h.dir)
		if len(left) == 0 {
			t.Fatal("while the client lives: no proxy process")
		}
		ends := make([]func(), 0, len(left))
		for pid := range left {
			ends = append(ends, processEnd(t, pid))
		}
		begin := time.Now()
		must(t, syscall.Kill(b.cmd.Process.Pid, syscall.SIGKILL))
		for _, end := range ends {
			end()
		}
		took = append(took, time.Since(begin))
		if _, err := os.Lstat(socket); !os.IsNotExist(err) {
			t.Fatalf("the proxy is gone, its socket %s is not: %v", socket, err)
		}
		h.forgetLock()
	}
	slices.Sort(took)
	p95 := took[len(took)*95/100-1]
	t.Logf("SIGKILL of the client to the end of the proxy, %d times: p50 %v, p95 %v, max %v",
		rounds, took[len(took)/2], p95, took[len(took)-1])
	if p95 > limit {
		t.Errorf("p95 is %v, want at most %v", p95, limit)
	}
}

// processEnd returns a function that waits for the end of a process.
func processEnd(t *testing.T, pid int) func() {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	must(t, err)
	return func() {
		t.Helper()
		defer func() { _ = unix.Close(fd) }()
		deadline := time.Now().Add(patience)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
			if err == unix.EINTR {
				continue
			}
			must(t, err)
			if n == 0 {
				t.Fatalf("process %d has not ended after %v", pid, patience)
			}
			return
		}
	}
}
