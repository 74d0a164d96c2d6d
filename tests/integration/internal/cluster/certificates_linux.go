package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// CertificateLife is how long from now a certificate is valid that the cluster
// signs: kube-controller-manager's --cluster-signing-duration. A request for more
// gets this; the API takes none for less than ten minutes.
//
// Backdate is how old it is then, however short its life. So a certificate is
// signed at 5 min of 8 min 15 s, and two thirds of its life are 30 s later.
const (
	CertificateLife = 195 * time.Second
	Backdate        = 5 * time.Minute
)

// StartCertificates starts kube-controller-manager with no other controllers
// than those that approve and sign certificates, the latter with the authority
// that the cluster's users are known by.
func (c *Cluster) StartCertificates(ctx context.Context) (*proc.Process, error) {
	port, err := FreePort(0)
	if err != nil {
		return nil, err
	}
	if err := c.CA.WriteKey(c.path("ca.key")); err != nil {
		return nil, err
	}
	kubeconfig := c.path("controllers.kubeconfig")
	if err := pki.WriteFile(kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: test, user: {client-certificate: %q, client-key: %q}}]
`, c.API.URL, c.path("ca.crt"), c.path("controllers.crt"), c.path("controllers.key"))); err != nil {
		return nil, err
	}
	p, err := c.start("kube-controller-manager", c.Bin["kube-controller-manager"],
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--controllers=certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller",
		// The rights to approve and sign are those controllers' own, not the manager's.
		"--use-service-account-credentials", "--leader-elect=false",
		"--service-account-private-key-file="+c.path("sa.key"), "--root-ca-file="+c.path("ca.crt"),
		"--cluster-signing-cert-file="+c.path("ca.crt"), "--cluster-signing-key-file="+c.path("ca.key"),
		"--cluster-signing-duration="+CertificateLife.String(),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file="+c.path("controllers-tls.crt"), "--tls-private-key-file="+c.path("controllers-tls.key"))
	if err != nil {
		return nil, err
	}
	return p, c.await(ctx, p, fmt.Sprintf("https://127.0.0.1:%d/healthz", port))
}
