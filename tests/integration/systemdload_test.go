//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A workload asks without end, over HTTP/1.1 and HTTP/2, and checks every answer.
type workload struct {
	requests atomic.Int64
	mu       sync.Mutex
	failures []string
}

func (w *workload) fail(format string, a ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, time.Now().UTC().Format("05.000 ")+fmt.Sprintf(format, a...))
}

// run sends GETs and POSTs by turns until stop. An upstream answers what it got:
// the body's hash is compared, both ways.
func (w *workload) run(client *http.Client, url string, body []byte, stop <-chan struct{}) {
	sum := sha256.Sum256(body)
	want := hex.EncodeToString(sum[:])
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		method, what := http.MethodGet, io.Reader(nil)
		if n%2 == 0 {
			method, what = http.MethodPost, bytes.NewReader(body)
		}
		req, err := http.NewRequest(method, url+"/echo", what)
		if err != nil {
			w.fail("%v", err)
			return
		}
		w.requests.Add(1)
		res, err := client.Do(req)
		if err != nil {
			w.fail("%s: %v", method, err)
			continue
		}
		back, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		switch {
		case err != nil:
			w.fail("%s: reading the answer: %v", method, err)
		case res.StatusCode != http.StatusOK:
			w.fail("%s: %s: %s", method, res.Status, back)
		case method == http.MethodPost && res.Header.Get("X-Hash") != want:
			w.fail("the body that arrived is another")
		case method == http.MethodPost && !bytes.Equal(back, body):
			w.fail("the body that came back is another")
		}
	}
}

// echoing answers with what it got, watches with an event now and then, and
// upgrades.
func echoing(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "":
		echo(w, r.Header.Get("Upgrade"))
	case strings.HasSuffix(r.URL.Path, "/watch"):
		for {
			if _, err := io.WriteString(w, firstEvent); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	default:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		sum := sha256.Sum256(body)
		w.Header().Set("X-Hash", hex.EncodeToString(sum[:]))
		_, _ = w.Write(body)
	}
}

// TestSystemdReplaceUnderLoad: the binary is exchanged and the service restarted
// three times. No request fails that is not a stream; a watch is taken up again,
// an upgraded connection has the drain timeout.
func TestSystemdReplaceUnderLoad(t *testing.T) {
	t.Parallel()
	up := startTLS(t, "127.0.0.1", http.HandlerFunc(echoing))
	u := newUnit(t, up.URL, nil)
	u.must("systemctl", "start", unitName)
	load, stop := &workload{}, make(chan struct{})
	body := make([]byte, 200<<10)
	for i := range body {
		body[i] = byte(i * 11 >> 2)
	}
	var all sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); all.Wait() })
	defer end()
	for i := range 8 {
		client := u.client(i%2 == 0)
		all.Go(func() { load.run(client, u.url(), body, stop) })
	}
	// A watch, begun anew whenever it ends.
	var events, watches atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watcher := u.client(false)
	all.Go(func() {
		for ctx.Err() == nil {
			resp, lines, err := firstLine(ctx, watcher, u.url()+"/watch?watch=true")
			if err != nil {
				continue
			}
			watches.Add(1)
			for err == nil {
				events.Add(1)
				_, err = lines.ReadString('\n')
			}
			_ = resp.Body.Close()
		}
	})
	program, err := os.ReadFile(suite.bin)
	must(t, err)
	s := &server{background: &background{t: t}, kubeconfig: u.kubeconfig(), listen: u.url()}
	for n := range 3 {
		requests, seen, pid := load.requests.Load(), events.Load(), u.show("MainPID")
		stream := s.dial(t, "http/1.1")
		_, err := io.WriteString(stream, "GET /exec HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		must(t, err)
		back := bufio.NewReader(stream)
		if resp, err := http.ReadResponse(back, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("upgrade: %v, %v", resp, err)
		}
		echoes(t, stream, back, "before")
		// Another file, with another inode.
		u.put("/usr/bin/execproxy", append(program, byte(n)), 0o755)
		restarted := make(chan error, 1)
		begin := time.Now()
		go func() {
			_, err := u.Run(t.Context(), "systemctl", "restart", unitName)
			restarted <- err
		}()
		p := "/proc/" + pid + "/status"
		eventually(t, patience, func() error { // it is draining
			log, err := os.ReadFile(u.Path("/run/execproxy.log"))
			if err == nil && strings.Count(string(log), "msg=ending") <= n {
				err = errors.New("not ending yet")
			}
			return err
		})
		echoes(t, stream, back, "while it drains")
		must(t, <-restarted)
		took := time.Since(begin)
		if _, err := os.Stat(u.Path(p)); err == nil {
			t.Error("the old process is still there")
		}
		if _, err := back.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the upgraded connection outlived the deadline: %v", err)
		}
		if took > patience { // systemd itself gives up after 90 s
			t.Errorf("the restart took %v with a drain timeout of 3s", took)
		}
		if now := u.show("MainPID"); now == pid || now == "0" {
			t.Errorf("the main process was %s and is %s", pid, now)
		}
		eventually(t, patience, func() error {
			if load.requests.Load() < requests+200 || events.Load() < seen+5 {
				return fmt.Errorf("%d requests and %d events since the restart", load.requests.Load()-requests, events.Load()-seen)
			}
			return nil
		})
		t.Logf("restart %d took %v; %d requests, %d watches so far", n+1, took, load.requests.Load(), watches.Load())
	}
	cancel()
	end()
	for _, f := range load.failures[:min(len(load.failures), 10)] {
		t.Error(f)
	}
	t.Logf("%d requests, %d failed; %d watches, %d events", load.requests.Load(), len(load.failures), watches.Load(), events.Load())
}
