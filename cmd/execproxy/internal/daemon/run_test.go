package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
)

const patience = 20 * time.Second

// A running proxy in front of a real API server, in this process.
type live struct {
	d      *Daemon
	places Places
	config *config.Config
	ended  chan error
	cancel context.CancelFunc
}

// playground is a config for a real API server, and places of its own.
func playground(t *testing.T) (*apiserver.Server, *config.Config, Places) {
	t.Helper()
	api, err := apiserver.Start(apiserver.Options{Pods: []string{"web"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	// Short: a socket's path has little room.
	dir, err := os.MkdirTemp("", "ep")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	key := filepath.Join(dir, "key.pem")
	writePair(t, api, key, "jane")
	c := &config.Config{
		Cluster:  config.Cluster{Server: api.URL(), CertificateAuthorityData: api.CA()},
		Identity: config.Identity{Auth: config.AuthMTLS, Key: key},
	}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	return api, c, Places{Runtime: filepath.Join(dir, "r"), State: filepath.Join(dir, "s")}
}

// writePair puts a new pair at path, whole.
func writePair(t *testing.T, api *apiserver.Server, path, user string) {
	t.Helper()
	key, cert, err := api.Issue(user)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", append(key, cert...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// testLog is the test's output until the test is over: a health check of http2,
// which nobody can wait for, may log a moment later, and that would be a panic.
type testLog struct {
	mu sync.Mutex
	to io.Writer
}

func (l *testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(b)
}

func (l *testLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = io.Discard
}

// begin runs a proxy until the test's end.
func begin(t *testing.T, c *config.Config, o Options) *live {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &live{places: o.Places, config: c, ended: make(chan error, 1), cancel: cancel}
	ready := make(chan struct{})
	next := o.Ready
	log := &testLog{to: t.Output()}
	o.LogWriter = log
	o.Ready = func(d *Daemon) error {
		r.d = d
		if next != nil {
			if err := next(d); err != nil {
				return err
			}
		}
		close(ready)
		return nil
	}
	over := make(chan struct{})
	go func() { defer close(over); r.ended <- Run(ctx, c, o) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-over:
		case <-time.After(patience):
			t.Error("it did not end with the test")
		}
		log.close()
	})
	select {
	case <-ready:
	case err := <-r.ended:
		t.Fatalf("it did not start: %v", err)
	case <-time.After(patience):
		t.Fatal("it did not start")
	}
	<-r.d.ready // which nothing keeps it from any more
	return r
}

// gone waits for the end and returns how long that took.
func (r *live) gone(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it did not end")
	}
	return time.Since(start)
}

// A sidecar answers for clients with locks of their own, and outlives them.
func TestSidecarOutlivesItsClients(t *testing.T) {
	_, c, p := playground(t)
	path := p.Socket("serve")
	r := begin(t, c, Options{ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{path}})
	lock := hold(t)
	if _, err := Answer(t.Context(), path, Ask{LockFile: lock.Path()}); err != nil {
		t.Fatal(err)
	}
	if n := len(r.d.life.paths()); n != 0 {
		t.Errorf("the sidecar took %d locks of its clients for its own life", n)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if _, err := Answer(t.Context(), path, Ask{}); err != nil {
		t.Errorf("after its client's end: %v", err)
	}
	r.cancel()
	r.gone(t)
}

// The socket of the id may be any of those that are named: its lock is not waited for twice.
func TestOwnNameAmongSockets(t *testing.T) {
	_, c, p := playground(t)
	c.DrainTimeout = time.Millisecond
	other := filepath.Join(p.Runtime, "other.sock")
	r := begin(t, c, Options{ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{other, p.Socket("serve")}})
	for _, path := range []string{other, p.Socket("serve")} {
		if _, err := Answer(t.Context(), path, Ask{}); err != nil {
			t.Error(err)
		}
	}
	r.cancel()
	r.gone(t)
}

// Nobody gets a document of a proxy that may yet fail to start.
func TestNoDocumentBeforeReady(t *testing.T) {
	_, c, p := playground(t)
	path := p.Socket("x")
	got := make(chan error, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- Run(t.Context(), c, Options{
			ID: "x", Life: lifeIdle, Idle: time.Hour, Places: p, Sockets: []string{path}, LogWriter: t.Output(),
			Ready: func(*Daemon) error {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				_, err := newController(path).document(ctx, Ask{})
				got <- err
				return errors.New("the first caller cannot be served")
			},
		})
	}()
	if err := <-got; err == nil {
		t.Error("a document was handed out before the start was over")
	}
	if err := <-ended; err == nil {
		t.Error("it started")
	}
}

// The end does not wait for a connection that is being made with a changed key.
func TestEndDuringRotation(t *testing.T) {
	api, c, p := playground(t)
	// In front of the API server stands a proxy that stops answering.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked, open := make(chan struct{}, 16), make(chan bool, 1)
	open <- true
	go func() {
		for {
			in, err := mute.Accept()
			if err != nil {
				return
			}
			select {
			case <-open: // the first goes through
				go tunnel(in, api.Address())
			default:
				asked <- struct{}{}
				t.Cleanup(func() { in.Close() })
			}
		}
	}()
	defer mute.Close()
	c.ProxyURL = "http://" + mute.Addr().String()
	r := begin(t, c, Options{ID: "x", Life: lifeLock, Places: p, Sockets: []string{p.Socket("x")}})
	lock := hold(t)
	if err := r.d.life.register(lock.Path()); err != nil {
		t.Fatal(err)
	}
	writePair(t, api, c.Key, "joan")
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("the changed key was not used")
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if took := r.gone(t); took > time.Second {
		t.Errorf("it ended %v after the lock came free, want less than a second", took)
	}
}

// tunnel is an HTTP proxy for one CONNECT.
func tunnel(in net.Conn, to string) {
	defer in.Close()
	buf := make([]byte, 4096)
	if _, err := in.Read(buf); err != nil {
		return
	}
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	if _, err := in.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")); err != nil {
		return
	}
	go func() {
		defer in.Close()
		pump(in, out)
	}()
	pump(out, in)
}

func pump(to, from net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
