//go:build linux

package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// TestServeHangup: a terminal that closes ends no proxy that serves, and none
// that drains.
func TestServeHangup(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	began := make(chan struct{}, 8)
	s := h.serveJane(startTLS(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			began <- struct{}{}
		}
		u.ServeHTTP(w, r)
	})).URL)
	client := s.http2(t)
	alive := func(what string) {
		t.Helper()
		select {
		case <-s.done:
			t.Fatalf("%s: serve ended with exit code %d: %s", what, s.code, s.stderr)
		default:
		}
	}
	hup := func() {
		t.Helper()
		must(t, s.cmd.Process.Signal(syscall.SIGHUP))
		must(t, s.cmd.Process.Signal(syscall.SIGHUP))
	}
	get(t, client, s.listen+"/version")
	pid := s.cmd.Process.Pid
	hup()
	for range 3 {
		get(t, s.http1(t), s.listen+"/version")
	}
	alive("SIGHUP")
	if p := h.proxy(); p.PID != pid {
		t.Errorf("process %d serves, it was %d", p.PID, pid)
	}

	// Uploads and downloads are under way, over both protocols, when it drains.
	var downloads []*http.Response
	var uploads []*io.PipeWriter
	uploaded := make(chan error, 8)
	for _, c := range []*http.Client{client, s.http1(t)} {
		for range 4 {
			source, up := io.Pipe()
			uploads = append(uploads, up)
			go func() {
				resp, err := c.Post(s.listen+"/upload", "application/octet-stream", source)
				if err == nil {
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						err = errors.New(resp.Status)
					}
				}
				uploaded <- err
			}()
			_, err := up.Write(u.body[:1<<20])
			must(t, err)
			<-began
		}
		for range 4 {
			resp, err := c.Get(s.listen + "/large")
			must(t, err)
			<-u.half
			downloads = append(downloads, resp)
		}
	}
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, 5*time.Second, func() error {
		conn, err := net.Dial("tcp", s.address())
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("%s still accepts", s.address())
		}
		return nil
	})
	hup()
	alive("SIGHUP while it drains")
	for _, up := range uploads {
		_, err := up.Write(u.body[1<<20:])
		must(t, err)
		must(t, up.Close())
		if err := <-uploaded; err != nil {
			t.Errorf("an upload under way: %v", err)
		}
	}
	whole := sha256.Sum256(u.body)
	if n := u.countOf("/upload"); n != len(uploads) {
		t.Errorf("%d of %d uploads reached the server", n, len(uploads))
	}
	u.mu.Lock()
	for _, r := range u.requests {
		if r.method == http.MethodPost && r.hash != hex.EncodeToString(whole[:]) {
			t.Error("an upload arrived changed or cut")
		}
	}
	u.mu.Unlock()
	u.release()
	for i, resp := range downloads {
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != string(u.body) {
			t.Errorf("download %d: %d of %d bytes, %v", i, len(body), len(u.body), err)
		}
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, s.stderr)
	}
}

// TestStalePair: the pair of a proxy that is no more is answered by the next one
// on its port, with 401: that is what makes a client run its plugin again.
func TestStalePair(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u).onLoopback(t)
	old := decode(t, h.exec(p).ok(t))
	get(t, h.loopback(old, p.server), p.server+"/version")
	first := h.proxy().PID
	end := processEnd(t, first)
	must(t, syscall.Kill(first, syscall.SIGKILL))
	end()
	fresh := decode(t, h.exec(p).ok(t))
	if fresh.Status.ClientKeyData == old.Status.ClientKeyData {
		t.Fatal("the next proxy takes the first one's key: there is no stale pair")
	}
	before := u.count()
	resp, err := h.loopback(old, p.server).Get(p.server + "/version")
	if err != nil {
		t.Fatalf("a stale pair must not fail in TLS: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var status metav1.Status
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil || status.Kind != "Status" || status.Message == "" ||
		resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("Execproxy-Error") == "" {
		t.Errorf("a stale pair is answered %s %v %+v, want 401 and a Status of ours", resp.Status, err, status)
	}
	if u.count() != before {
		t.Error("the request with a stale pair reached the upstream")
	}
	get(t, h.loopback(fresh, p.server), p.server+"/version")
}

// TestStaleClient: client-go, unmodified, outlives its proxy.
func TestStaleClient(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	kc := h.proxied("--kubeconfig", h.kubeconfig("plain", suite.cluster.API.URL, cert, key))
	config, err := clientcmd.BuildConfigFromFlags("", kc)
	must(t, err)
	for name, value := range h.env {
		config.ExecProvider.Env = append(config.ExecProvider.Env, api.ExecEnvVar{Name: name, Value: value})
	}
	config.Timeout = patience
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	list := func() error {
		_, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{Limit: 1})
		return err
	}
	must(t, list())
	first := h.proxy().PID
	end := processEnd(t, first)
	must(t, syscall.Kill(first, syscall.SIGKILL))
	end()
	h.kubectl(kc, "get", "namespaces").ok(t) // somebody else starts the next proxy
	if next := h.proxy().PID; next == first {
		t.Fatal("no new proxy")
	}
	refused := 0
	eventually(t, 5*time.Second, func() error {
		err := list()
		if err != nil {
			if !kerrors.IsUnauthorized(err) {
				t.Errorf("want 401 or nothing: %v", err)
			}
			refused++
		}
		return err
	})
	t.Logf("%d requests were refused until the plugin had run again", refused)
	if refused > 1 {
		t.Errorf("%d requests were refused, want one at most", refused)
	}
}

// TestLogDiskFull: what cannot be logged is lost, and nothing else.
func TestLogDiskFull(t *testing.T) {
	t.Parallel()
	// The device refuses every write, or this shows nothing.
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	if _, err := f.WriteString("x"); err == nil {
		t.Fatal("/dev/full takes what is written to it")
	}
	must(t, f.Close())
	h, u := newHome(t), newUpstream(t)
	s := h.serveJane(u.url, "--log-file", "/dev/full", "--log-level", "debug")
	p := h.jane(u)
	p.config["logFile"], p.config["logLevel"] = "/dev/full", "debug"
	d := h.open(p)
	for client, url := range map[*http.Client]string{s.http2(t): s.listen, s.http1(t): s.listen, d.client(t, u.url): u.url} {
		for range 20 {
			get(t, client, url+"/version")
		}
		req, err := http.NewRequest(http.MethodGet, url+"/version", nil)
		must(t, err)
		req.Header.Set("Authorization", "Bearer of-somebody-else") // is logged as refused
		resp, err := client.Do(req)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("a foreign Authorization is answered %s", resp.Status)
		}
	}
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	if code := s.wait(); code != 0 {
		t.Errorf("serve ended with exit code %d: %s", code, s.stderr)
	}
	p.lock.release()
	h.gone(d.socket(t), 2*time.Second)
}
