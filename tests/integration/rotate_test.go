//go:build linux

package integration

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
)

// TestKubeletRotates proves a limit. A kubelet that is told to rotate its
// certificate drops the plugin, and the pair of a sidecar's kubeconfig too: as the
// node, through the proxy, it has a certificate of its own made, and with that it
// knocks at a proxy that knows none but the session's.
func TestKubeletRotates(t *testing.T) {
	t.Parallel()
	p, h := newControlPlane(t), newHome(t)
	const name = "127.0.0.3"
	_, err := p.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "rotation"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"},
		Subjects:   []rbac.Subject{{Kind: rbac.GroupKind, APIGroup: rbac.GroupName, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = p.StartCertificates(t.Context())
	must(t, err)

	flags := p.flags(h, p.API.URL, "system:node:"+name, "system:nodes")
	sidecar := h.serve(flags...).kubeconfig
	plugin := h.proxied(flags...)
	kubeconfig, certs := h.path("kubelet.kubeconfig"), h.path("pki")
	must(t, os.Symlink(sidecar, kubeconfig))
	n, err := p.StartNode(t.Context(), cluster.NodeOptions{
		Name: name, Kubeconfig: kubeconfig, Env: h.command("true").Env, Args: []string{"--cert-dir=" + certs},
		Config: map[string]any{"rotateCertificates": false},
	})
	needNode(t, err)
	t.Cleanup(func() {
		h.execproxy("stop", "--all") // while the kubelet's plugin is a process of the node's
		n.Stop()
	})
	// again starts the kubelet anew and returns what it logs from there.
	again := func(kc string, rotate bool) func() string {
		n.StopKubelet()
		must(t, os.RemoveAll(certs))
		path := filepath.Join(n.Dir, "kubelet.json")
		var config map[string]any
		data, err := os.ReadFile(path)
		must(t, err)
		must(t, json.Unmarshal(data, &config))
		config["rotateCertificates"] = rotate
		data, err = json.Marshal(config)
		must(t, err)
		must(t, os.WriteFile(path, data, 0o600))
		must(t, os.Remove(kubeconfig))
		must(t, os.Symlink(kc, kubeconfig))
		log, err := os.Stat(n.KubeletLog)
		must(t, err)
		must(t, n.StartKubelet())
		return func() string {
			all, err := os.ReadFile(n.KubeletLog)
			must(t, err)
			return string(all[log.Size():])
		}
	}
	for way, kc := range map[string]string{"sidecar": sidecar, "plugin": plugin} {
		log := again(kc, true)
		eventually(t, 2*patience, func() error {
			_, rest, rotated := strings.Cut(log(), "Certificate rotation detected")
			if !rotated || !strings.Contains(rest, "a kubelet needs rotateCertificates: false") {
				return fmt.Errorf("%s: the kubelet has not locked itself out: %v", way, rotated)
			}
			return nil
		})
		pair, err := os.ReadFile(filepath.Join(certs, "kubelet-client-current.pem"))
		must(t, err)
		block, _ := pem.Decode(pair)
		c, err := x509.ParseCertificate(block.Bytes)
		must(t, err)
		if c.Subject.CommonName != "system:node:"+name || c.CheckSignatureFrom(p.CA.Cert) != nil {
			t.Errorf("%s: the kubelet's own certificate is %s of %s", way, c.Subject, c.Issuer)
		}
	}
	// The cure: the setting, and the kubelet's own certificate out of the way.
	again(plugin, false)
	p.renewed(t, name, 2*patience)
	again(sidecar, false)
	p.renewed(t, name, 2*patience)
	must(t, n.Ready(t.Context()))
}
