//go:build unix

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/process"
)

// A testOrder is what the test's service reads on its standard input.
type testOrder struct {
	ID     string
	Places Places
	Idle   time.Duration
	Fail   string
}

// echo answers with what it was sent, and its pid.
func echo() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in string
		ReplyService(w, r, &in, func() (any, error) {
			switch in {
			case "fail":
				return nil, errors.New("it failed")
			case "wait":
				time.Sleep(2 * aliveTimeout)
			}
			return map[string]any{"said": in, "pid": os.Getpid()}, nil
		})
	})
}

func playService() error {
	var o testOrder
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	if o.Fail != "" {
		return Fail(os.Stdout, errors.New(o.Fail))
	}
	return Detach(context.Background(), os.Stdout, &Service{
		ID: o.ID, Places: o.Places, Idle: o.Idle, Handler: echo(), Logger: slog.New(slog.DiscardHandler),
		Status: func(s *Status) { s.Auth = "echo" },
	})
}

func testErrand(t *testing.T, o testOrder) *Errand {
	t.Helper()
	dir, err := os.MkdirTemp("", "eps-") // short, for the socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o.ID, o.Places = "echo-0123456789abcdef", Places{Runtime: filepath.Join(dir, "r"), State: filepath.Join(dir, "s")}
	e := &Errand{ID: o.ID, Places: o.Places, Command: "service", Order: o, Environ: append(os.Environ(), role+"=service")}
	t.Cleanup(func() {
		for _, s := range Running(context.Background(), o.Places) {
			if err := Stop(context.Background(), o.Places, s); err != nil {
				t.Error(err)
			}
		}
	})
	return e
}

type echoed struct {
	Said string
	PID  int
}

// TestServiceOnce: many that need it at once get one, which status lists and stop ends.
func TestServiceOnce(t *testing.T) {
	e := testErrand(t, testOrder{})
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		pids = map[int]bool{}
	)
	for range 20 {
		all.Go(func() {
			var out echoed
			if err := e.Do(t.Context(), "/echo", "hello", &out); err != nil || out.Said != "hello" {
				t.Errorf("got %+v, %v", out, err)
			}
			mu.Lock()
			pids[out.PID] = true
			mu.Unlock()
		})
	}
	all.Wait()
	list := Running(t.Context(), e.Places)
	if len(pids) != 1 || len(list) != 1 || !pids[list[0].PID] || list[0].Auth != "echo" || list[0].ID != e.ID {
		t.Errorf("pids %v, status %+v", pids, list)
	}
	if read, err := Reconfigure(t.Context(), e.Places, list[0]); read || err != nil { // reload --all does not fail because of it
		t.Errorf("reload: %v, %v", read, err)
	}
	var out echoed
	if err := e.Do(t.Context(), "/echo", "fail", &out); err == nil || err.Error() != "it failed" {
		t.Errorf("got %v", err)
	}
	// Work may take longer than the sign of life.
	if err := e.Do(t.Context(), "/echo", "wait", &out); err != nil {
		t.Error(err)
	}
	if err := Stop(t.Context(), e.Places, list[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(e.Places.ServiceSocket(e.ID)); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	if err := e.Do(t.Context(), "/echo", "again", &out); err != nil || pids[out.PID] {
		t.Errorf("after stop: %+v, %v", out, err)
	}
}

// TestServiceEnds when nobody called for a while.
func TestServiceEnds(t *testing.T) {
	e := testErrand(t, testOrder{Idle: 300 * time.Millisecond})
	var out echoed
	if err := e.Do(t.Context(), "/echo", "hello", &out); err != nil {
		t.Fatal(err)
	}
	ended, gone := process.WatchEnd(out.PID)
	if gone == nil {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := ended(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestServiceDown: who is not there, does not start or hangs is one clear error.
func TestServiceDown(t *testing.T) {
	var out echoed
	e := testErrand(t, testOrder{Fail: "no reason to"})
	if err := e.Do(t.Context(), "/echo", "x", &out); err == nil || err.Error() != "no reason to" {
		t.Errorf("it cannot start: %v", err)
	}
	e.Path = filepath.Join(e.Places.Runtime, "x.sock")
	if err := e.Do(t.Context(), "/echo", "x", &out); err == nil || !strings.Contains(err.Error(), "nobody answers at "+e.Path) {
		t.Errorf("nobody is there: %v", err)
	}
	ln, err := net.Listen("unix", e.Path) // and never accepts
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := e.Do(t.Context(), "/echo", "x", &out); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("it hangs: %v", err)
	}
}

// TestServiceID: what decides the identity decides the id, and nothing else does.
func TestServiceID(t *testing.T) {
	id := func(what string, environ ...string) string {
		id, err := ServiceID("x", "/dir", environ, what)
		if err != nil || !strings.HasPrefix(id, "x-") || len(id) != 18 {
			t.Fatalf("%q, %v", id, err)
		}
		return id
	}
	base := id("a", "AWS_PROFILE=p", "HOME=/h", "TERM=x")
	for _, same := range []string{id("a", "HOME=/h", "AWS_PROFILE=p"), id("a", "HOME=/h", "AWS_PROFILE=p", "INVOCATION_ID=1", "SYSTEMD_EXEC_PID=2", "WATCHDOG_PID=2")} {
		if same != base {
			t.Error("what means nothing makes another service")
		}
	}
	for _, other := range []string{id("b", "AWS_PROFILE=p", "HOME=/h"), id("a", "AWS_PROFILE=q", "HOME=/h"), id("a", "AWS_PROFILE=p", "HOME=/h", "HTTPS_PROXY=x"), id("a", "AWS_PROFILE=p", "HOME=/h", "PATH=/x"),
		// The programs that it runs take theirs from anywhere.
		id("a", "AWS_PROFILE=p", "HOME=/h", "DOCKER_CONFIG=/x"), id("a", "AWS_PROFILE=p", "HOME=/h", "GOOGLE_APPLICATION_CREDENTIALS=/x")} {
		if other == base {
			t.Error("another identity has the same service")
		}
	}
}
