//go:build linux

package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSigV4Kubectl: kubectl, execproxy, a verifying front proxy, kube-apiserver;
// with credentials from each of the places that people keep them.
func TestSigV4Kubectl(t *testing.T) {
	t.Parallel()
	for name, credentials := range map[string]func(h *home){
		"environment": func(h *home) {
			h.env["AWS_ACCESS_KEY_ID"], h.env["AWS_SECRET_ACCESS_KEY"], h.env["AWS_SESSION_TOKEN"] = awsKeyID, awsSecret, awsToken
		},
		"shared file": func(h *home) { h.sharedCredentials() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, ns, front := newHome(t), namespace(t), newFrontProxy(t, "127.0.0.1")
			credentials(h)
			cert, key := h.user("nobody")
			plain := h.kubeconfig("plain", front.URL, cert, key)
			kc := h.proxied("--kubeconfig", plain, "--auth", "sigv4", "--aws-region", "eu-central-1", "--aws-service", "execute-api")
			everyday(t, h, kc, ns, "arn:aws:iam::1:user/jane")
			passed, refused := front.counts()
			if passed == 0 || len(refused) > 0 {
				t.Errorf("the front proxy let %d requests pass and refused %v", passed, refused)
			}
			if p := h.proxy(); p.Signatures < int64(passed) || p.Handshakes.Full != 1 {
				t.Errorf("%d requests passed the front proxy; status: %+v", passed, p)
			}
			for _, user := range audit(t, suite.cluster.API, "/api/v1/namespaces/"+ns+"/configmaps") {
				if user != "arn:aws:iam::1:user/jane" && user != "admin" {
					t.Errorf("the audit log names %s", user)
				}
			}
		})
	}
}

// TestSigV4IPv6: the authority in brackets is signed as it is sent.
func TestSigV4IPv6(t *testing.T) {
	t.Parallel()
	h, front := newHome(t), newFrontProxy(t, "::1")
	h.sharedCredentials()
	lib := h.library(front.URL, suite.cluster.CA.PEM, sigv4Config())
	if user, err := whoAmI(t.Context(), clientset(t, front.URL, lib.RoundTripper())); err != nil || user != "arn:aws:iam::1:user/jane" {
		t.Errorf("the API server sees %q, %v", user, err)
	}
}

// TestSigV4WrongSecret: the front proxy's refusal reaches the client as it is.
func TestSigV4WrongSecret(t *testing.T) {
	t.Parallel()
	h, front := newHome(t), newFrontProxy(t, "127.0.0.1")
	h.env["AWS_ACCESS_KEY_ID"], h.env["AWS_SECRET_ACCESS_KEY"], h.env["AWS_SESSION_TOKEN"] = awsKeyID, "not-the-secret", awsToken
	lib := h.library(front.URL, suite.cluster.CA.PEM, sigv4Config())
	_, err := whoAmI(t.Context(), clientset(t, front.URL, lib.RoundTripper()))
	if !kerrors.IsForbidden(err) {
		t.Errorf("a request signed with the wrong secret: %v, want 403", err)
	}
	if passed, _ := front.counts(); passed != 0 {
		t.Errorf("%d requests with the wrong secret passed", passed)
	}
}

// TestSigV4Tampered: whoever sits between and changes anything that matters
// is found out.
func TestSigV4Tampered(t *testing.T) {
	t.Parallel()
	h, ns, front := newHome(t), namespace(t), newFrontProxy(t, "127.0.0.1")
	hop := newTamperer(t, front.URL)
	h.sharedCredentials()
	d := h.open(plugin{server: hop.URL, ca: suite.cluster.CA.PEM, config: sigv4Config(), lock: h.lock()})
	client := d.client(t, hop.URL)
	collection := "/api/v1/namespaces/" + ns + "/configmaps"
	serial := 0
	// send creates a config map as bob would not be allowed to, and lists.
	send := func(method, query, as string) (int, string) {
		t.Helper()
		serial++
		var body io.Reader
		if method == http.MethodPost {
			body = strings.NewReader(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m%d"},"data":{"k":"honest"}}`, serial))
		}
		req, err := http.NewRequest(method, hop.URL+collection+query, body)
		must(t, err)
		req.Header.Set("Content-Type", "application/json")
		if as != "" {
			req.Header.Set("Impersonate-User", as)
		}
		resp, err := client.Do(req)
		must(t, err)
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(text)
	}
	honest := func() {
		t.Helper()
		hop.set(nil)
		for method, want := range map[string]int{http.MethodPost: 201, http.MethodGet: 200} {
			if code, text := send(method, "?fieldManager=x&fieldValidation=Strict", ""); code != want {
				t.Fatalf("%s through an honest hop: %d %s", method, code, text)
			}
		}
		if code, text := send(http.MethodGet, "", "bob"); code != 200 {
			t.Fatalf("as bob through an honest hop: %d %s", code, text)
		}
	}
	honest()
	for _, c := range []struct {
		name, method, query, as string
		change                  func(*http.Request)
	}{
		{"path", "GET", "", "", func(r *http.Request) { r.URL.Path = "/api/v1/namespaces/kube-system/configmaps" }},
		{"path, one byte more", "GET", "", "", func(r *http.Request) { r.URL.Path += "/m1" }},
		{"method", "GET", "", "", func(r *http.Request) { r.Method = http.MethodDelete }},
		{"query value", "GET", "?limit=1", "", func(r *http.Request) { r.URL.RawQuery = "limit=2" }},
		{"query added", "POST", "", "", func(r *http.Request) { r.URL.RawQuery = "dryRun=All" }},
		{"query dropped", "POST", "?dryRun=All", "", func(r *http.Request) { r.URL.RawQuery = "" }},
		{"header value", "GET", "", "bob", func(r *http.Request) { r.Header.Set("Impersonate-User", "admin") }},
		{"header dropped", "POST", "", "bob", func(r *http.Request) { r.Header.Del("Impersonate-User") }},
		{"header added", "GET", "", "", func(r *http.Request) { r.Header.Set("Impersonate-User", "bob") }},
		{"header doubled", "GET", "", "bob", func(r *http.Request) { r.Header.Add("Impersonate-User", "bob") }},
		{"content type", "POST", "", "", func(r *http.Request) { r.Header.Set("Content-Type", "application/yaml") }},
		{"date", "GET", "", "", func(r *http.Request) { r.Header.Set("X-Amz-Date", "20260101T000000Z") }},
		{"session token", "GET", "", "", func(r *http.Request) { r.Header.Set("X-Amz-Security-Token", "another") }},
		{"host", "GET", "", "", func(r *http.Request) { r.Host = "another.example.com" }},
		{"body", "POST", "", "", func(r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(bytes.Replace(body, []byte("honest"), []byte("forged"), 1)))
		}},
		{"body and its hash", "POST", "", "", func(r *http.Request) {
			r.Body, r.ContentLength = http.NoBody, 0
			r.Header.Set("X-Amz-Content-Sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
		}},
		{"body declared unsigned", "POST", "", "", func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD") }},
		{"signature", "GET", "", "", func(r *http.Request) {
			a := r.Header.Get("Authorization")
			r.Header.Set("Authorization", a[:len(a)-4]+"0000")
		}},
	} {
		passed, before := front.counts()
		hop.set(c.change)
		code, text := send(c.method, c.query, c.as)
		nowPassed, refused := front.counts()
		if code != http.StatusForbidden && code != http.StatusUnauthorized || nowPassed != passed || len(refused) == len(before) {
			t.Errorf("%s changed: answered %d %s; the front proxy let %d pass", c.name, code, text, nowPassed-passed)
			continue
		}
		t.Logf("%s: %v", c.name, refused[len(refused)-1])
	}
	honest()
	list, err := suite.admin.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, m := range list.Items {
		if m.Data["k"] != "honest" {
			t.Errorf("%s was changed on the way: %v", m.Name, m.Data)
		}
	}
	if len(list.Items) != 2 {
		t.Errorf("%d config maps, want the two of the honest requests", len(list.Items))
	}
}
