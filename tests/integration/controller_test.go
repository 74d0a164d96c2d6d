//go:build linux

package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestControllerManager: the real kube-controller-manager works through a
// sidecar. It brings service-account tokens of its own, which pass without the
// proxy's certificate: kube-apiserver must see each controller as itself.
func TestControllerManager(t *testing.T) {
	t.Parallel()
	h, ns, ctx := newHome(t), namespace(t), t.Context()
	keys := suite.cluster.Dir
	cert, key := filepath.Join(keys, "controllers.crt"), filepath.Join(keys, "controllers.key")
	s := h.serve(append(upstreamFlags(suite.cluster.API.URL, cert, key), "--foreign-authorization", "passthrough")...)
	m := h.start(suite.cluster.Bin["kube-controller-manager"],
		"--kubeconfig="+s.kubeconfig, "--authentication-kubeconfig="+s.kubeconfig, "--authorization-kubeconfig="+s.kubeconfig,
		"--use-service-account-credentials", "--leader-elect=false", "--controllers=deployment-controller,replicaset-controller",
		"--service-account-private-key-file="+filepath.Join(keys, "sa.key"), "--root-ca-file="+filepath.Join(keys, "ca.crt"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", freePort(t)),
		"--tls-cert-file="+filepath.Join(keys, "controllers-tls.crt"), "--tls-private-key-file="+filepath.Join(keys, "controllers-tls.key"))

	replicas, labels := int32(2), map[string]string{"app": "web"}
	_, err := suite.admin.AppsV1().Deployments(ns).Create(ctx, &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: apps.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       core.PodSpec{Containers: []core.Container{{Name: "c", Image: "none"}}},
			},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, 2*patience, func() error {
		select {
		case <-m.done:
			t.Fatalf("kube-controller-manager ended: %s", m.stderr)
		default:
		}
		pods, err := suite.admin.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) != 2 {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
	for path, want := range map[string]string{
		"/apis/apps/v1/namespaces/" + ns + "/replicasets": "system:serviceaccount:kube-system:deployment-controller",
		"/api/v1/namespaces/" + ns + "/pods":              "system:serviceaccount:kube-system:replicaset-controller",
	} {
		// The audit log may be a moment behind.
		eventually(t, patience, func() error {
			if users := audit(t, suite.cluster.API, path); !slices.Contains(users, want) || slices.Contains(users, "system:kube-controller-manager") {
				return fmt.Errorf("%s was used by %q, want %s", path, users, want)
			}
			return nil
		})
	}
	if users := audit(t, suite.cluster.API, "/api/v1/namespaces/kube-system/serviceaccounts"); !slices.Contains(users, "system:kube-controller-manager") {
		t.Errorf("nobody used the proxy's own identity: %q", users)
	}
	if strings.Contains(m.stderr.String(), "Unauthorized") {
		t.Errorf("kube-controller-manager was refused: %s", m.stderr)
	}
}
