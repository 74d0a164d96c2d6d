//go:build linux

package integration

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

var quantity = resource.MustParse

// quick is a lease that a leader loses within seconds.
var quick = []string{"--leader-elect=true", "--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=1s"}

// TestSchedulerSidecar: the real kube-scheduler beside a proxy that is killed,
// ended and replaced. It has read its kubeconfig once, and must not notice.
func TestSchedulerSidecar(t *testing.T) {
	t.Parallel()
	p, h := newControlPlane(t), newHome(t)
	ns := p.namespace(t)
	p.place(t, ns)
	s := h.sidecar(p.flags(h, p.API.URL, "system:kube-scheduler")...)
	c := h.start(p.schedulerOf(t, h, ns, s.kubeconfig, "15s", "10s")...)
	lease := p.leads(t, ns)
	p.scheduled(t, ns, "before")
	for i, end := range []func(){
		s.kill,
		func() { s.signal(syscall.SIGTERM); s.wait() },
		s.kill,
	} {
		end()
		s.again()
		p.stillLeads(t, lease)
		p.scheduled(t, ns, fmt.Sprint("after-", i))
		c.alive(t)
	}
	users := by(t, p.API, "create", "/api/v1/namespaces/"+ns+"/pods/")
	if len(users) != 1 || users["system:kube-scheduler"] < 4 {
		t.Errorf("bound by %v, want system:kube-scheduler, 4 pods", users)
	}
}

// TestSchedulerPlugin: kube-scheduler with the exec plugin in its kubeconfig. A
// plugin is run again when its credential is over, never because a connection was
// refused, so a lease has to outlast the credential.
func TestSchedulerPlugin(t *testing.T) {
	t.Parallel()
	p, h := newControlPlane(t), newHome(t)
	ns := p.namespace(t)
	p.place(t, ns)
	kubeconfig := h.proxied(append(p.flags(h, p.API.URL, "system:kube-scheduler"), "--idle-timeout", "80s")...)
	c := h.start(p.schedulerOf(t, h, ns, kubeconfig, "137s", "107s")...)
	lease := p.leads(t, ns)
	p.scheduled(t, ns, "before")
	first := h.proxy().PID
	must(t, syscall.Kill(first, syscall.SIGKILL))
	p.stillLeads(t, lease)
	p.scheduled(t, ns, "after")
	c.alive(t)
	if now := h.proxy().PID; now == first {
		t.Errorf("process %d was killed and serves", now)
	}
}

// TestSchedulerPluginLosesItsLease: with the usual lease the scheduler ends, says
// why, and is the leader again once its service manager has started it.
func TestSchedulerPluginLosesItsLease(t *testing.T) {
	t.Parallel()
	p, h := newControlPlane(t), newHome(t)
	ns := p.namespace(t)
	p.place(t, ns)
	kubeconfig := h.proxied(p.flags(h, p.API.URL, "system:kube-scheduler")...)
	args := p.schedulerOf(t, h, ns, kubeconfig, "15s", "10s")
	c := h.start(args...)
	p.leads(t, ns)
	must(t, syscall.Kill(h.proxy().PID, syscall.SIGKILL))
	if code := c.wait(); code == 0 || !strings.Contains(c.stderr.String(), "eaderelection lost") {
		t.Errorf("kube-scheduler ended with exit code %d: %s", code, c.stderr)
	}
	h.start(args...)
	p.scheduled(t, ns, "after")
}

// TestControllerManagerRejected: without --foreign-authorization nobody works with
// the tokens of service accounts, and the answer says what to do.
func TestControllerManagerRejected(t *testing.T) {
	t.Parallel()
	p, h := newControlPlane(t), newHome(t)
	s := h.serve(p.flags(h, p.API.URL, "system:kube-controller-manager")...)
	c := h.start(p.controllers(t, s.kubeconfig, "--leader-elect=false")...)
	ns := p.namespace(t)
	p.deploy(t, ns, "none", 1)
	c.stderr.await(t, "allow foreign credentials (foreignAuthorization: passthrough)")
	made := "/apis/apps/v1/namespaces/" + ns + "/replicasets"
	if users := by(t, p.API, "create", made); users["system:kube-controller-manager"] > 0 {
		t.Errorf("a controller's work was done as the controller manager: %v", users)
	}
}
