//go:build linux

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
)

// TestEKSToken: the token that EKS takes, handed out and sent for the client, is what its
// authenticator accepts; that of another cluster is not.
func TestEKSToken(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	h.sharedCredentials()
	h.env["AWS_ENDPOINT_URL_STS"] = b.sts
	identity := func(cluster string) []string {
		return []string{"--server", b.URL, "--certificate-authority", suite.cluster.Dir + "/ca.crt", "--auth", "eks-token", "--eks-cluster", cluster, "--aws-region", "eu-central-1"}
	}
	const jane = "arn:aws:iam::1:user/jane"
	direct := h.directed(identity(eksCluster)...)
	if got := whoami(t, h, direct); got != jane {
		t.Errorf("auth whoami: %q", got)
	}
	a := h.answer(h.execproxy("exec", "--direct", "--auth", "eks-token", "--eks-cluster", eksCluster, "--aws-region", "eu-central-1"))
	if left := time.Until(a.Status.ExpirationTimestamp); !strings.HasPrefix(a.Status.Token, "k8s-aws-v1.") || left < 12*time.Minute || left > 14*time.Minute {
		t.Errorf("a token of %d bytes, %v left", len(a.Status.Token), left)
	}
	proxied := h.proxied(identity(eksCluster)...)
	if got := whoami(t, h, proxied); got != jane {
		t.Errorf("auth whoami through the proxy: %q", got)
	}
	h.execproxy("stop", "--all").ok(t)
	if r := h.kubectl(h.directed(identity("other")...), "auth", "whoami"); r.code == 0 {
		t.Errorf("the token of another cluster: %s", r)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.denied) == 0 || !strings.Contains(fmt.Sprint(b.denied), "signature does not match") {
		t.Errorf("the STS refused: %v", b.denied)
	}
}

// TestChained: behind the proxy the token reaches no client, is got once for all of them,
// and anew when the API server refuses it, without a client's noticing.
func TestChained(t *testing.T) {
	t.Parallel()
	b, h := newBearers(t), newHome(t)
	p := h.issuer("chained-a", "chained-b")
	b.takes("jane", "chained-b")
	kc := h.proxied("--kubeconfig", p.kubeconfig(b.URL, "provideClusterInfo: true"))
	ns := namespace(t)
	everyday(t, h, kc, ns, "jane")
	if n := p.calls(); n != 2 || b.seen("chained-a") == 0 {
		t.Errorf("the plugin behind ran %d times, want once more after the 401", n)
	}
	var asked struct {
		Spec struct {
			Cluster struct {
				Server string
				CA     []byte `json:"certificate-authority-data"`
			}
		}
	}
	if err := json.Unmarshal([]byte(p.read("asked")), &asked); err != nil || asked.Spec.Cluster.Server != b.URL || string(asked.Spec.Cluster.CA) != string(suite.cluster.CA.PEM) {
		t.Errorf("the plugin behind was asked %s, %v", p.read("asked"), err)
	}
	// The same with a proxy that lives as long as one command.
	if got := h.execproxy("run", "--kubeconfig", p.kubeconfig(b.URL), "--", suite.kubectl, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}").ok(t); got != "jane" {
		t.Errorf("run: auth whoami: %q", got)
	}
	config, err := clientcmd.LoadFromFile(kc)
	must(t, err)
	data, err := json.Marshal(object{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": object{"interactive": false, "cluster": object{
		"server": config.Clusters["prod"].Server, "certificate-authority-data": config.Clusters["prod"].CertificateAuthorityData, "config": json.RawMessage(config.Clusters["prod"].Extensions["client.authentication.k8s.io/exec"].(*runtime.Unknown).Raw)}}})
	must(t, err)
	h.env["KUBERNETES_EXEC_INFO"] = string(data)
	a := h.answer(h.execproxy("exec"))
	if a.Status.Token != "" || a.Status.ClientKeyData == "" || strings.Contains(fmt.Sprint(a), "chained-") {
		t.Errorf("the client of the proxy gets %+v", a)
	}
	// A proxy hands out no credential to whoever asks on its socket, either.
	socket := h.proxy().Socket
	for _, args := range [][]string{{"exec", "--direct", "--socket", socket, "--exec-command", p.command}, {"exec", "--direct"}} {
		if r := h.execproxy(args...); r.code == 0 || r.stdout != "" || strings.Contains(r.stderr, "chained-") {
			t.Errorf("%v: %s", args, r)
		}
	}
	control := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket+".ctl")
	}}}
	resp, err := control.Post("http://execproxy/v1/document", "application/json", strings.NewReader(`{"direct":true}`))
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode == http.StatusOK || !strings.Contains(string(body), "does not hand out") || strings.Contains(string(body), "chained-") {
		t.Errorf("the control socket: %s %s %v", resp.Status, body, err)
	}
	for _, log := range []string{h.path("state/execproxy/log/" + h.proxy().ID + ".log")} {
		if text, err := os.ReadFile(log); err != nil || strings.Contains(string(text), "chained-") {
			t.Errorf("the log: %v\n%s", err, text)
		}
	}
}

// listening returns this home's only proxy, besides what keeps credentials.
func (h *home) listening() (p proxyStatus) {
	h.t.Helper()
	for _, s := range h.status() {
		if len(s.Listeners) > 0 {
			return s
		}
	}
	h.t.Fatal("no proxy runs")
	return p
}

// TestChainedPair: what the plugin behind hands out may be a certificate.
func TestChainedPair(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	p := h.issuer("none")
	p.put("life", "5")
	hand := func(user string) {
		cert, key := h.user(user, "dev")
		c, err := os.ReadFile(cert)
		must(t, err)
		k, err := os.ReadFile(key)
		must(t, err)
		data, err := json.Marshal(object{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
			"status": object{"clientCertificateData": string(c), "clientKeyData": string(k), "expirationTimestamp": "@UNTIL@"}})
		must(t, err)
		p.put("answer", string(data))
	}
	hand("jane")
	plain := p.kubeconfig(suite.cluster.API.URL)
	if got := whoami(t, h, h.directed("--kubeconfig", plain)); got != "jane" {
		t.Errorf("direct: %q", got)
	}
	kc := h.proxied("--kubeconfig", plain)
	if got := whoami(t, h, kc); got != "jane" {
		t.Errorf("through the proxy: %q", got)
	}
	// The next one is taken over while the proxy runs.
	pid := h.listening().PID
	hand("john")
	eventually(t, patience, func() error {
		if got := whoami(t, h, kc); got != "john" {
			return fmt.Errorf("through the proxy with the next certificate: %q", got)
		}
		return nil
	})
	if now := h.listening(); now.PID != pid || now.Identity != "john" {
		t.Errorf("the proxy is %+v, was %d", now, pid)
	}
}
