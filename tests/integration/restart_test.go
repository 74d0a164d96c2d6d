//go:build linux

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// load creates config maps, each of them once, from several workers, and keeps
// what it was told about each. It is plain HTTP: client-go would send again.
type load struct {
	client     *http.Client
	collection string

	phase            atomic.Int32 // 0 up, 1 down, 2 up again
	ok, failed       [3]atomic.Int64
	created, unclear sync.Map // by name
}

const workers = 8

var errTwice = errors.New("exists already: it was sent twice")

// create returns nil when the server says that it has created name.
func (l *load) create(ctx context.Context, name string) error {
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.collection, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.client.Do(req)
	if err != nil {
		return fmt.Errorf("no answer at all: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode == http.StatusCreated && err == nil:
		return nil
	case resp.StatusCode == http.StatusConflict:
		return errTwice
	}
	return &failure{code: resp.StatusCode, header: resp.Header, body: string(text)}
}

// failure is an answer that is not 201.
type failure struct {
	code   int
	header http.Header
	body   string
}

func (f *failure) Error() string { return fmt.Sprintf("%d %s", f.code, f.body) }

// ours says whether it is told as the proxy tells the upstream's failures.
func (f *failure) ours() bool {
	var status struct{ Kind, Message string }
	err := json.Unmarshal([]byte(f.body), &status)
	return err == nil && status.Kind == "Status" && status.Message != "" &&
		f.code >= 502 && f.code <= 504 && f.header.Get("Execproxy-Error") != ""
}

func (l *load) work(ctx context.Context, t *testing.T, worker int, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		name, during := fmt.Sprintf("m-%d-%d", worker, i), l.phase.Load()
		switch err := l.create(ctx, name); {
		case err == nil:
			l.created.Store(name, true)
			l.ok[during].Add(1)
		case errors.Is(err, errTwice):
			t.Errorf("%s %v", name, err)
		default:
			l.unclear.Store(name, err)
			l.failed[during].Add(1)
			time.Sleep(20 * time.Millisecond) // the load is not meant for a server that is down
		}
	}
}

// TestRestart: kube-apiserver dies and comes back under load. No request may
// be lost silently, none may be sent twice.
func TestRestart(t *testing.T) {
	t.Parallel()
	ctx, ns := t.Context(), namespace(t)
	api, err := suite.cluster.StartAPIServer(ctx, "kube-apiserver-restart")
	must(t, err)
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	lib := h.library(api.URL, suite.cluster.CA.PEM, mtls(cert, key))
	l := &load{
		client:     &http.Client{Transport: lib.RoundTripper(), Timeout: patience},
		collection: api.URL + "/api/v1/namespaces/" + ns + "/configmaps",
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer end()
	for w := range workers {
		wg.Go(func() { l.work(ctx, t, w, stop) })
	}
	enough := func(what string, n *atomic.Int64, want int64) {
		t.Helper()
		eventually(t, patience, func() error {
			if got := n.Load(); got < want {
				return fmt.Errorf("%d %s", got, what)
			}
			return nil
		})
	}
	enough("created before the failure", &l.ok[0], 100)
	l.phase.Store(1)
	api.Kill()
	enough("refused while the server is down", &l.failed[1], 100)
	begin := time.Now()
	must(t, api.Start(ctx))
	up := time.Now()
	l.phase.Store(2)
	enough("created after the restart", &l.ok[2], 200)
	recovered := time.Since(up)
	end()
	t.Logf("created %d before, %d around, %d after; failed %d, %d, %d; server back after %v, 200 creations %v later",
		l.ok[0].Load(), l.ok[1].Load(), l.ok[2].Load(), l.failed[0].Load(), l.failed[1].Load(), l.failed[2].Load(), up.Sub(begin), recovered)
	if l.failed[2].Load() > 2*workers {
		t.Errorf("%d failures after the server was back, want none but those under way", l.failed[2].Load())
	}
	l.check(t, ns)
}

// check compares what exists with what the clients were told.
func (l *load) check(t *testing.T, ns string) {
	t.Helper()
	list, err := suite.admin.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	there := map[string]bool{}
	for _, m := range list.Items {
		there[m.Name] = true
		_, acknowledged := l.created.Load(m.Name)
		_, told := l.unclear.Load(m.Name)
		if !acknowledged && !told {
			t.Errorf("%s exists, and nobody was told", m.Name)
		}
	}
	l.created.Range(func(name, _ any) bool {
		if !there[name.(string)] {
			t.Errorf("%s was acknowledged and is not there", name)
		}
		return true
	})
	kinds := map[string]int{}
	l.unclear.Range(func(name, err any) bool {
		var f *failure
		if !errors.As(err.(error), &f) {
			// The server died while it answered: what came of the answer is cut off, so
			// that nobody takes it for a whole one.
			kinds["cut"]++
			t.Logf("%s: %v", name, err)
			return true
		}
		// A server that is starting or dying says its own 403, 429, 500 or 503.
		kinds[fmt.Sprint(f.code, " ", f.header.Get("Execproxy-Error"))]++
		if f.header.Get("Execproxy-Error") != "" && !f.ours() {
			t.Errorf("%s: not a Status of 5xx that says what happened: %v", name, f)
		}
		if f.code >= 502 && f.header.Get("Retry-After") != "" && there[name.(string)] {
			t.Errorf("%s was created, and its client is told to send it again: %v %v", name, f, f.header)
		}
		return true
	})
	t.Logf("failures: %v", kinds)
	if kinds["cut"] > workers {
		t.Errorf("%d requests were cut off, want at most those under way", kinds["cut"])
	}
}
