//go:build linux

package integration

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// bearers is a kube-apiserver that takes bearer tokens, and the authentication webhook
// that it asks about each of them.
type bearers struct {
	*cluster.APIServer
	sts string // the only STS that the webhook trusts

	mu     sync.Mutex
	users  map[string]string // by token
	asked  []string          // tokens, as they came
	denied []error           // of EKS tokens
}

// withBearers starts it once for all tests; the cluster's end is its end.
var withBearers = sync.OnceValues(func() (*bearers, error) {
	b := &bearers{users: map[string]string{}}
	webhook := httptest.NewServer(http.HandlerFunc(b.review))
	cert, err := suite.cluster.CA.Issue(pki.Options{CommonName: "sts", Hosts: []string{"127.0.0.1"}})
	if err != nil {
		return nil, err
	}
	b.sts, err = startSTS(cert)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(suite.cluster.Dir, "webhook.kubeconfig")
	err = pki.WriteFile(config, []byte(fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: w,
contexts: [{name: w, context: {cluster: w}}], clusters: [{name: w, cluster: {server: %q}}]}`, webhook.URL)))
	if err != nil {
		return nil, err
	}
	b.APIServer, err = suite.cluster.StartAPIServer(context.Background(), "bearer-apiserver",
		"--authentication-token-webhook-config-file="+config, "--authentication-token-webhook-cache-ttl=1ns",
		"--authentication-token-webhook-version=v1")
	return b, err
})

func newBearers(t *testing.T) *bearers {
	t.Helper()
	b, err := withBearers()
	must(t, err)
	return b
}

// takes has the API server take tokens for a user's.
func (b *bearers) takes(user string, tokens ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range tokens {
		b.users[t] = user
	}
}

// seen is how often the webhook was asked about a token.
func (b *bearers) seen(token string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.asked {
		if t == token {
			n++
		}
	}
	return n
}

// review answers a TokenReview.
func (b *bearers) review(w http.ResponseWriter, r *http.Request) {
	var in struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       struct {
			Token string `json:"token"`
		} `json:"spec"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	user, ok := b.users[in.Spec.Token]
	b.asked = append(b.asked, in.Spec.Token)
	b.mu.Unlock()
	if text, eks := strings.CutPrefix(in.Spec.Token, "k8s-aws-v1."); eks {
		arn, err := b.callerIdentity(r.Context(), text)
		if user, ok = arn, err == nil; !ok {
			b.mu.Lock()
			b.denied = append(b.denied, err)
			b.mu.Unlock()
		}
	}
	status := object{"authenticated": ok}
	if ok {
		status["user"] = object{"username": user, "groups": []string{"dev"}}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object{"apiVersion": in.APIVersion, "kind": in.Kind, "status": status})
}

// eksCluster is who the webhook says that it is, as each EKS cluster does.
const eksCluster = "prod"

// callerIdentity does with a token what aws-iam-authenticator does: it checks that it is a
// presigned GetCallerIdentity to an STS that it trusts, in which the cluster's name was
// signed, adds the cluster's own name, and sends it.
func (b *bearers) callerIdentity(ctx context.Context, text string) (arn string, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(string(raw))
	if err != nil {
		return "", err
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", err
	}
	for name, values := range query {
		known := []string{"Action", "Version", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-Security-Token", "X-Amz-Signature", "X-Amz-SignedHeaders"}
		if len(values) != 1 || !slices.Contains(known, name) {
			return "", fmt.Errorf("query parameter %s, %d times", name, len(values))
		}
	}
	switch {
	case u.Scheme+"://"+u.Host != b.sts || u.Path != "/":
		return "", fmt.Errorf("%s is not at the STS", u.Redacted())
	case query.Get("Action") != "GetCallerIdentity":
		return "", errors.New("another action")
	case query.Get("X-Amz-Expires") != "60":
		return "", errors.New("X-Amz-Expires is not what the first verifiers want")
	case !slices.Contains(strings.Split(query.Get("X-Amz-SignedHeaders"), ";"), "x-k8s-aws-id"):
		return "", errors.New("the cluster's name was not signed")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("X-K8s-Aws-Id", eksCluster)
	req.Header.Set("Accept", "application/json")
	client, err := suite.cluster.AdminClient() // for its CA
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("STS: %s %s %v", resp.Status, body, err)
	}
	var out struct {
		GetCallerIdentityResponse struct {
			GetCallerIdentityResult struct{ Arn string }
		}
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return "", err
	}
	return out.GetCallerIdentityResponse.GetCallerIdentityResult.Arn, nil
}

// startSTS starts an STS that verifies presigned requests. It ends with the tests.
func startSTS(pair *pki.Pair) (string, error) {
	verifier := sigv4.Verifier{
		Region: "eu-central-1", Service: "sts", Presigned: true, RequireSigned: []string{"X-K8s-Aws-Id"},
		Lookup: func(id, date, region, service string) ([]byte, sigv4.Identity, error) {
			if id != awsKeyID {
				return nil, sigv4.Identity{}, sigv4.ErrUnknownKey
			}
			return sigv4.DeriveKey(awsSecret, date, region, service), sigv4.Identity{User: "arn:aws:iam::1:user/jane"}, nil
		},
		CheckSessionToken: func(_ sigv4.Identity, token string) error {
			if token != awsToken {
				return errors.New("another session token")
			}
			return nil
		},
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		view, err := signer.FromReceived(r, signer.EmptySHA256)
		if err == nil {
			var id sigv4.Identity
			if id, err = verifier.Verify(view); err == nil {
				_ = json.NewEncoder(w).Encode(object{"GetCallerIdentityResponse": object{"GetCallerIdentityResult": object{"Arn": id.User, "Account": "1", "UserId": "AIDA"}}})
				return
			}
		}
		http.Error(w, err.Error(), http.StatusForbidden)
	}))
	cert, err := pair.TLS()
	if err != nil {
		return "", err
	}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	return s.URL, nil
}

// An issuer is somebody else's exec credential plugin: a program that hands out tokens, one
// after the other, and keeps what it was asked.
type issuer struct {
	h       *home
	dir     string
	command string
}

const issuerScript = `#!/bin/sh
cd "$(dirname "$0")" || exit 9
echo run >> calls
printf '%s' "$KUBERNETES_EXEC_INFO" > asked
printf '%s' "$*" > args
env > environ
if [ -e prompt ]; then
	case $KUBERNETES_EXEC_INFO in
	*'"interactive":true'*) printf 'password: ' >&2; read -r answer; [ "$answer" = pass-2718 ] || { echo 'wrong password' >&2; exit 4; } ;;
	*) echo 'cannot ask for the password' >&2; exit 5 ;;
	esac
fi
[ -e hang ] && { sleep 600 & echo $! > hung; wait; }
[ -e fail ] && { cat fail >&2; exit 3; }
until=$(date -u -d "+$(cat life) seconds" +%Y-%m-%dT%H:%M:%SZ)
[ -e answer ] && { sed "s/@UNTIL@/$until/" answer; exit 0; }
token=$(sed -n "$(wc -l < calls)p" tokens)
[ -n "$token" ] || token=$(tail -n 1 tokens)
version=$(sed 's/.*"apiVersion":"\([^"]*\)".*/\1/' asked)
printf '{"apiVersion":"%s","kind":"ExecCredential","status":{"expirationTimestamp":"%s","token":"%s"}}\n' "$version" "$until" "$token"
`

// issuer makes one, with the tokens that it hands out.
func (h *home) issuer(tokens ...string) *issuer {
	h.t.Helper()
	p := &issuer{h: h, dir: h.path("issuer"), command: h.path("issuer/issuer")}
	must(h.t, os.Mkdir(p.dir, 0o700))
	must(h.t, os.WriteFile(p.command, []byte(issuerScript), 0o700))
	p.put("tokens", strings.Join(tokens, "\n")+"\n")
	p.put("life", "600")
	h.own(p.dir, p.command)
	return p
}

func (p *issuer) put(name, text string) { p.h.file("issuer/"+name, text) }

func (p *issuer) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(p.dir, name))
	return string(data)
}

// calls is how often it was run.
func (p *issuer) calls() int { return strings.Count(p.read("calls"), "\n") }

// kubeconfig is that of a user of this plugin.
func (p *issuer) kubeconfig(server string, more ...string) string {
	return p.h.file("issuer.kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: work
contexts:
- {name: work, context: {cluster: prod, user: me}}
clusters:
- {name: prod, cluster: {server: %q, certificate-authority: %q}}
users:
- name: me
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, args: [get-token, --cluster=prod], env: [{name: ISSUER, value: test}], interactiveMode: IfAvailable%s}
`, server, suite.cluster.Dir+"/ca.crt", p.command, strings.Join(append([]string{""}, more...), ", ")))
}

// directed writes what `execproxy kubeconfig --direct` makes of flags.
func (h *home) directed(args ...string) string {
	h.t.Helper()
	return h.file("direct.kubeconfig", h.execproxy(append([]string{"kubeconfig", "--direct", "--command", h.bin}, args...)...).ok(h.t))
}
