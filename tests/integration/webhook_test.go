//go:build linux

package integration

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// webhook decides for kube-apiserver who somebody is and what they may, for
// whoever proves to be its client. It knows two paths, and no other spelling.
type webhook struct {
	*httptest.Server
	verify func(r *http.Request, body []byte) error

	mu     sync.Mutex
	asked  map[string]int
	broken []error
}

const webhookClient = "kube-apiserver-webhook-client"

func newWebhook(t *testing.T, auth string) *webhook {
	t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "webhook", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	w := &webhook{asked: map[string]int{}}
	w.Server = httptest.NewUnstartedServer(w)
	w.EnableHTTP2, w.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	w.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	switch auth {
	case "mtls":
		w.TLS.ClientAuth, w.TLS.ClientCAs = tls.RequireAndVerifyClientCert, suite.cluster.CA.Pool()
		w.verify = func(r *http.Request, _ []byte) error {
			if name := r.TLS.VerifiedChains[0][0].Subject.CommonName; name != webhookClient {
				return fmt.Errorf("%s is not the API server", name)
			}
			return nil
		}
	case "sigv4":
		v := sigv4.Verifier{
			Region: "eu-central-1", Service: "execute-api",
			Lookup: func(id, date, region, service string) ([]byte, sigv4.Identity, error) {
				if id != awsKeyID {
					return nil, sigv4.Identity{}, sigv4.ErrUnknownKey
				}
				return sigv4.DeriveKey(awsSecret, date, region, service), sigv4.Identity{AccessKeyID: id, User: webhookClient}, nil
			},
			CheckSessionToken: func(_ sigv4.Identity, token string) error {
				if token != awsToken {
					return errors.New("another session token")
				}
				return nil
			},
		}
		w.verify = func(r *http.Request, body []byte) error {
			hash := sha256.Sum256(body)
			view, err := signer.FromReceived(r, hex.EncodeToString(hash[:]))
			if err == nil {
				_, err = v.Verify(view)
			}
			return err
		}
	}
	w.StartTLS()
	t.Cleanup(func() { w.CloseClientConnections(); w.Close() })
	return w
}

func (w *webhook) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = w.verify(r, body)
	}
	var answer any
	if err == nil {
		answer, err = decideReview(r, body)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.broken = append(w.broken, fmt.Errorf("%s %s: %w", r.Method, r.RequestURI, err))
		http.Error(rw, err.Error(), http.StatusForbidden)
		return
	}
	w.asked[r.URL.Path]++
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(answer)
}

// decideReview knows the tokens hooked-…, and lets their users at configmaps.
func decideReview(r *http.Request, body []byte) (any, error) {
	strict := json.NewDecoder(bytes.NewReader(body))
	if r.Method != http.MethodPost {
		return nil, errors.New("not a review")
	}
	switch r.URL.EscapedPath() {
	case "/base/authenticate":
		var review authentication.TokenReview
		if err := strict.Decode(&review); err != nil {
			return nil, err
		}
		if name, ok := strings.CutPrefix(review.Spec.Token, "hooked-"); ok {
			review.Status = authentication.TokenReviewStatus{Authenticated: true, User: authentication.UserInfo{Username: "hooked:" + name}}
		}
		return review, nil
	case "/base/authorize":
		var review authorization.SubjectAccessReview
		if err := strict.Decode(&review); err != nil {
			return nil, err
		}
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = strings.HasPrefix(review.Spec.User, "hooked:") && a != nil && a.Resource == "configmaps"
		if !review.Status.Allowed {
			review.Status.Reason = "the webhook says no"
		}
		return review, nil
	}
	return nil, errors.New("no such path")
}

// webhookKubeconfig copies a kubeconfig, and gives its plugin the environment of
// this home: kube-apiserver, which runs it, has none for it.
func (h *home) webhookKubeconfig(name, path string) string {
	h.t.Helper()
	config, err := clientcmd.LoadFromFile(path)
	must(h.t, err)
	for _, user := range config.AuthInfos {
		if user.Exec == nil {
			continue
		}
		for k, v := range h.env {
			user.Exec.Env = append(user.Exec.Env, api.ExecEnvVar{Name: k, Value: v})
		}
	}
	out, err := clientcmd.Write(*config)
	must(h.t, err)
	return h.file(name+".kubeconfig", string(out))
}

// TestWebhook: kube-apiserver is a client of webhooks, and reaches them through
// execproxy, which has the identity that they ask for.
func TestWebhook(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ auth, way string }{{"mtls", "plugin"}, {"mtls", "sidecar"}, {"sigv4", "sidecar"}} {
		t.Run(tt.auth+" "+tt.way, func(t *testing.T) {
			t.Parallel()
			w, ns := newWebhook(t, tt.auth), namespace(t)
			homes := map[string]*home{"authenticate": newHome(t), "authorize": newHome(t)}
			kubeconfigs := map[string]string{}
			var sidecars []*sidecar
			for name, h := range homes {
				url := w.URL + "/base/" + name
				cert, key := h.user(webhookClient)
				flags := upstreamFlags(url, cert, key)
				if tt.auth == "sigv4" {
					flags = h.sigv4Flags(url)
				}
				kc := ""
				if tt.way == "sidecar" {
					s := h.serve(flags...)
					kc = s.kubeconfig
					sidecars = append(sidecars, &sidecar{server: s, h: h, args: s.cmd.Args, client: s.tls(t, "http/1.1")})
				} else {
					kc = h.proxied(flags...)
				}
				kubeconfigs[name] = h.webhookKubeconfig(name, kc)
			}
			server, err := suite.cluster.StartAPIServer(t.Context(), "kube-apiserver-"+tt.auth+"-"+tt.way,
				"--authentication-token-webhook-config-file="+kubeconfigs["authenticate"], "--authentication-token-webhook-version=v1",
				"--authorization-mode=Webhook", // after those that all have
				"--authorization-webhook-config-file="+kubeconfigs["authorize"], "--authorization-webhook-version=v1")
			must(t, err)
			t.Cleanup(server.Kill) // before its proxies are

			hooked := func(name string) {
				t.Helper()
				c, err := kubernetes.NewForConfig(&rest.Config{
					Host: server.URL, BearerToken: "hooked-" + name, TLSClientConfig: rest.TLSClientConfig{CAData: suite.cluster.CA.PEM},
				})
				must(t, err)
				if user, err := whoAmI(t.Context(), c); err != nil || user != "hooked:"+name {
					t.Errorf("the API server sees %q, %v", user, err)
				}
				if _, err := c.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{}); err != nil {
					t.Errorf("what the webhook allows: %v", err)
				}
				if _, err := c.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "the webhook says no") {
					t.Errorf("what the webhook forbids: %v", err)
				}
			}
			hooked("first")
			for _, s := range sidecars {
				s.kill()
				s.again()
			}
			hooked("second")

			w.mu.Lock()
			defer w.mu.Unlock()
			// `again` asks for /version to see whether it is let in.
			for _, err := range w.broken {
				if !strings.Contains(err.Error(), "/version:") {
					t.Errorf("the webhook refused: %v", err)
				}
			}
			if w.asked["/base/authenticate"] < 2 || w.asked["/base/authorize"] < 4 {
				t.Errorf("the webhook was asked %v", w.asked)
			}
			for name, h := range homes {
				if p := h.proxy(); p.Requests < int64(1) || p.Server != w.URL+"/base/"+name {
					t.Errorf("the proxy of %s: %+v", name, p)
				}
			}
		})
	}
}
