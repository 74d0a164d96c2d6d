package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	pods   = "/api/v1/namespaces/default/pods"
	whoami = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
)

func start(t *testing.T, o apiserver.Options) *apiserver.Server {
	t.Helper()
	if o.Running == 0 {
		o.Running = time.Millisecond
	}
	s, err := apiserver.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func pair(t *testing.T, s *apiserver.Server, user string, groups ...string) tls.Certificate {
	t.Helper()
	key, cert, err := s.Issue(user, groups...)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// client speaks HTTP/2, or HTTP/1.1 only.
func client(t *testing.T, config *tls.Config, http2 bool) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func call(t *testing.T, c *http.Client, method, url string, body []byte, want int, v any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	send(t, c, req, want, v)
}

func send(t *testing.T, c *http.Client, req *http.Request, want int, v any) {
	t.Helper()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != want {
		t.Fatalf("%s %s: %s, want %d: %s", req.Method, req.URL, resp.Status, want, b)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if want >= 400 {
		var s apiserver.Status
		if err := json.Unmarshal(b, &s); err != nil || s.Kind != "Status" || s.Code != want || s.Status != "Failure" {
			t.Errorf("not a Status of %d: %s", want, b)
		}
	}
	if v != nil {
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	}
}

func user(t *testing.T, c *http.Client, s *apiserver.Server) apiserver.UserInfo {
	t.Helper()
	var rv apiserver.Review
	call(t, c, http.MethodPost, s.URL()+whoami, []byte("{}"), http.StatusCreated, &rv)
	return rv.Status.UserInfo
}

func TestCertificate(t *testing.T) {
	s := start(t, apiserver.Options{})
	for proto, http2 := range map[string]bool{"HTTP/2.0": true, "HTTP/1.1": false} {
		u := user(t, client(t, s.ClientConfig(pair(t, s, "jane", "developers")), http2), s)
		if u.Username != "jane" || !slices.Equal(u.Groups, []string{"developers", "system:authenticated"}) {
			t.Errorf("%s: user %+v", proto, u)
		}
		if got := u.Extra["demo.execproxy.io/protocol"]; !slices.Equal(got, []string{proto}) {
			t.Errorf("protocol %q, want %q", got, proto)
		}
	}
}

func TestUnauthenticated(t *testing.T) {
	s := start(t, apiserver.Options{})
	other := start(t, apiserver.Options{})
	for name, certs := range map[string][]tls.Certificate{
		"no certificate":                     nil,
		"a certificate of another authority": {pair(t, other, "jane")},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, s.ClientConfig(certs...), true)
			for _, path := range []string{"/version", pods, pods + "/web", pods + "?watch=true", "/nowhere"} {
				call(t, c, http.MethodGet, s.URL()+path, nil, http.StatusUnauthorized, nil)
			}
			call(t, c, http.MethodPost, s.URL()+whoami, []byte("{}"), http.StatusUnauthorized, nil)
		})
	}
	t.Run("a bearer token", func(t *testing.T) {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/version", nil)
		req.Header.Set("Authorization", "Bearer of-bad-news")
		send(t, client(t, s.ClientConfig(), true), req, http.StatusUnauthorized, nil)
	})
}

func TestPods(t *testing.T) {
	s := start(t, apiserver.Options{Pods: []string{"web"}})
	c := client(t, s.ClientConfig(pair(t, s, "jane")), true)

	var v map[string]string
	call(t, c, http.MethodGet, s.URL()+"/version", nil, http.StatusOK, &v)
	if v["major"] != "1" || v["gitVersion"] == "" {
		t.Errorf("version %v", v)
	}
	var p apiserver.Pod
	call(t, c, http.MethodGet, s.URL()+pods+"/web", nil, http.StatusOK, &p)
	if p.Metadata.Name != "web" || p.Status.Phase != "Running" || p.Metadata.UID == "" {
		t.Errorf("pod %+v", p)
	}
	body := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"new"},"spec":{"containers":[]}}`)
	call(t, c, http.MethodPost, s.URL()+pods, body, http.StatusCreated, &p)
	if p.Metadata.Name != "new" || p.Status.Phase != "Pending" || string(p.Spec) != `{"containers":[]}` {
		t.Errorf("created %+v", p)
	}
	var l apiserver.PodList
	call(t, c, http.MethodGet, s.URL()+pods, nil, http.StatusOK, &l)
	if len(l.Items) != 2 || l.Items[0].Metadata.Name != "web" || l.Items[1].Metadata.Name != "new" || l.Metadata.ResourceVersion == "" {
		t.Errorf("list %+v", l)
	}

	for _, r := range []struct {
		method, path, body string
		want               int
	}{
		{http.MethodGet, pods + "/none", "", http.StatusNotFound},
		{http.MethodGet, "/apis/apps/v1/deployments", "", http.StatusNotFound},
		{http.MethodGet, pods + "?watch=true&resourceVersion=soon", "", http.StatusBadRequest},
		{http.MethodPost, pods, string(body), http.StatusConflict},
		{http.MethodPost, pods, "{", http.StatusBadRequest},
		{http.MethodPost, pods, `{"kind":"Pod"}`, http.StatusUnprocessableEntity},
		{http.MethodPost, pods, string(make([]byte, 3<<20+1)), http.StatusRequestEntityTooLarge},
		{http.MethodGet, pods + "/web/exec?command=ls", "", http.StatusBadRequest},
	} {
		call(t, c, r.method, s.URL()+r.path, []byte(r.body), r.want, nil)
	}
}

// A watch shows what is there at once, then each event as it happens, and ends with the server.
func TestWatch(t *testing.T) {
	s := start(t, apiserver.Options{Pods: []string{"web"}})
	for _, http2 := range []bool{true, false} {
		c := client(t, s.ClientConfig(pair(t, s, "jane")), http2)
		w := open(t, c, s.URL()+pods+"?watch=true")
		w.expect(t, "ADDED", "web", "Running")
		name := map[bool]string{true: "two", false: "one"}[http2]
		if !http2 {
			w.expect(t, "ADDED", "two", "Running")
		}
		var p apiserver.Pod
		call(t, c, http.MethodPost, s.URL()+pods, []byte(`{"kind":"Pod","metadata":{"name":"`+name+`"}}`), http.StatusCreated, &p)
		w.expect(t, "ADDED", name, "Pending")
		w.expect(t, "MODIFIED", name, "Running")

		// From a version on: only what came later.
		later := open(t, c, s.URL()+pods+"?watch=1&resourceVersion="+p.Metadata.ResourceVersion)
		later.expect(t, "MODIFIED", name, "Running")
	}
	c := client(t, s.ClientConfig(pair(t, s, "jane")), true)
	w := open(t, c, s.URL()+pods+"?watch=true")
	w.expect(t, "ADDED", "web", "Running")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, w.body); errors.Is(err, context.DeadlineExceeded) {
		t.Error("the watch outlived the server")
	}
}

type watch struct {
	body io.Reader
	dec  *json.Decoder
}

func open(t *testing.T, c *http.Client, url string) *watch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	return &watch{resp.Body, json.NewDecoder(resp.Body)}
}

func (w *watch) expect(t *testing.T, kind, name, phase string) {
	t.Helper()
	var e apiserver.Event
	if err := w.dec.Decode(&e); err != nil {
		t.Fatalf("waiting for %s %s: %v", kind, name, err)
	}
	if e.Type != kind || e.Object.Metadata.Name != name || e.Object.Status.Phase != phase {
		t.Errorf("event %s %s %s, want %s %s %s", e.Type, e.Object.Metadata.Name, e.Object.Status.Phase, kind, name, phase)
	}
}
