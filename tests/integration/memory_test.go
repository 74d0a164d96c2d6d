//go:build linux

package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestManyWatches: thousands of watches that wait are cheap, and all of them
// get what comes. EXECPROXY_TEST_WATCHES says how many.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	n := 2000
	if v := os.Getenv("EXECPROXY_TEST_WATCHES"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		must(t, err)
	}
	h := newHome(t)
	var c census
	s := h.serveJane(startTLS(t, "127.0.0.1", &c).URL)
	client := s.http2(t)
	get(t, client, s.listen+"/version")
	pid := s.cmd.Process.Pid
	before := memoryOf(t, pid, "VmRSS")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var open, second, failed sync.WaitGroup
	var lost atomic.Int64
	turns := make(chan struct{}, 32)
	for range n {
		open.Add(1)
		second.Add(1)
		failed.Go(func() {
			defer second.Done()
			turns <- struct{}{}
			resp, events, err := firstLine(ctx, client, s.listen+"/watch")
			<-turns
			open.Done()
			if err != nil {
				if lost.Add(1) == 1 {
					t.Errorf("opening a watch: %v", err)
				}
				return
			}
			defer func() { _ = resp.Body.Close() }()
			if line, err := events.ReadString('\n'); line != firstEvent {
				if lost.Add(1) == 1 {
					t.Errorf("watched %q, %v", line, err)
				}
			}
		})
	}
	open.Wait()
	idle := memoryOf(t, pid, "VmRSS")
	t.Logf("%d watches: %s before, %s with them: %.1f KiB each", n, mib(before), mib(idle), float64(idle-before)/float64(n)/1024)
	if each := (idle - before) / int64(n); each > bound(64<<10) {
		t.Errorf("a watch costs %d bytes", each)
	}
	begin := time.Now()
	c.tell()
	all := make(chan struct{})
	go func() { second.Wait(); close(all) }()
	select {
	case <-all:
		t.Logf("an event is with all of them after %v", time.Since(begin))
	case <-time.After(patience):
		t.Error("not all of them got the event")
		cancel()
		<-all
	}
	if l := lost.Load(); l > 0 {
		t.Errorf("%d of %d watches were lost", l, n)
	}
	eventually(t, patience, func() error {
		if n := c.now(); n > 0 {
			return fmt.Errorf("%d watches are open at the server though the clients are gone", n)
		}
		return nil
	})
}

// vault is an API server that keeps uploads waiting until so many are there.
type vault struct {
	enough chan struct{} // closed when full
	want   int64
	here   atomic.Int64
	bad    atomic.Int64 // bodies that are not what was signed
}

func (v *vault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	n, err := io.Copy(hash, r.Body)
	if n == 0 || err != nil || r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(hash.Sum(nil)) {
		v.bad.Add(1)
	}
	if v.here.Add(1) == v.want {
		close(v.enough)
	}
	select {
	case <-v.enough:
	case <-time.After(5 * time.Second): // the others wait for memory
	case <-r.Context().Done():
	}
	_, _ = io.WriteString(w, "{}\n")
}

// TestManyBodies: bodies that must be hashed before they are sent come all at
// once. Each is answered, if only with the advice to come back, and memory has
// its bounds.
func TestManyBodies(t *testing.T) {
	t.Parallel()
	const crowd, size = 200, 1 << 20
	for name, http2 := range map[string]bool{"one connection": true, "a connection each": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			v := &vault{enough: make(chan struct{}), want: 32}
			s := h.serve(h.sigv4Flags(startTLS(t, "127.0.0.1", v).URL)...)
			client := s.http1(t)
			if http2 {
				client = s.http2(t)
			}
			body := strings.Repeat("0123456789abcdef", size/16)
			var ok, busy atomic.Int64
			var wg sync.WaitGroup
			begin := time.Now()
			for i := range crowd {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.listen+"/upload", strings.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					if i%4 == 3 {
						req.ContentLength = -1 // chunks, of unknown number
					}
					resp, err := client.Do(req)
					if err != nil {
						t.Errorf("no answer: %v", err)
						return
					}
					defer func() { _ = resp.Body.Close() }()
					switch {
					case resp.StatusCode == http.StatusOK:
						ok.Add(1)
					case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "":
						busy.Add(1)
					default:
						t.Errorf("answered %s %v", resp.Status, resp.Header)
					}
				})
			}
			wg.Wait()
			peak := memoryOf(t, s.cmd.Process.Pid, "VmHWM")
			t.Logf("%d bodies of %s in %v: %d accepted, %d told to come back; memory %s at its peak",
				crowd, mib(size), time.Since(begin), ok.Load(), busy.Load(), mib(peak))
			if ok.Load() == 0 {
				t.Error("none was accepted")
			}
			if n := v.bad.Load(); n > 0 {
				t.Errorf("%d bodies are not what was signed", n)
			}
			if peak > bound(400<<20) {
				t.Errorf("memory reached %s", mib(peak))
			}
			resp, err := client.Post(s.listen+"/upload", "text/plain", strings.NewReader("after"))
			must(t, err)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("the next body is answered %s", resp.Status)
			}
		})
	}
}

// TestBodyLimits: what must be hashed has a limit, however it is announced.
func TestBodyLimits(t *testing.T) {
	t.Parallel()
	const most = 3 << 20
	h, u := newHome(t), newUpstream(t)
	s := h.serve(h.sigv4Flags(u.url)...)
	for protocol, client := range map[string]*http.Client{"http1": s.http1(t), "h2": s.http2(t)} {
		for _, c := range []struct {
			name   string
			length int64 // announced
			size   int64 // -1: endless
			want   int
		}{
			{"the limit", most, most, 200}, {"a byte more", most + 1, most + 1, 413},
			{"the limit, in chunks", -1, most, 200}, {"a byte more, in chunks", -1, most + 1, 413},
			{"endless chunks", -1, -1, 413}, {"a terabyte announced", 1 << 40, -1, 413},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			var source io.Reader = zeros{}
			if c.size >= 0 {
				source = io.LimitReader(source, c.size)
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.listen+"/"+protocol+"-upload", source)
			must(t, err)
			req.ContentLength = c.length
			before := u.count()
			resp, err := client.Do(req)
			if err != nil {
				t.Errorf("%s, %s: %v", protocol, c.name, err)
				cancel()
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			cancel()
			if resp.StatusCode != c.want || (u.count() > before) != (c.want == 200) {
				t.Errorf("%s, %s: answered %s, want %d; %d requests reached the server", protocol, c.name, resp.Status, c.want, u.count()-before)
			}
		}
	}
	if peak := memoryOf(t, s.cmd.Process.Pid, "VmHWM"); peak > bound(200<<20) {
		t.Errorf("memory reached %s", mib(peak))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// flood is an API server with a log of a gigabyte.
type flood struct{ written, gone atomic.Int64 }

const floodSize = 1 << 30

func (f *flood) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/log" {
		_, _ = io.WriteString(w, "{}\n")
		return
	}
	defer f.gone.Add(1)
	piece := make([]byte, 64<<10)
	for n := 0; n < floodSize; n += len(piece) {
		if _, err := w.Write(piece); err != nil {
			return
		}
		f.written.Add(int64(len(piece)))
	}
}

// TestReaderStops: a log of a gigabyte, and a reader that has stopped reading.
// The server is held up; the proxy keeps nothing.
func TestReaderStops(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"h2": true, "http1": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, f := newHome(t), &flood{}
			s := h.serveJane(startTLS(t, "127.0.0.1", f).URL)
			client := s.http1(t)
			if http2 {
				client = s.http2(t)
			}
			get(t, client, s.listen+"/version")
			pid := s.cmd.Process.Pid
			before := memoryOf(t, pid, "VmRSS")
			resp, err := client.Get(s.listen + "/log")
			must(t, err)
			defer func() { _ = resp.Body.Close() }()
			const first = 64 << 20
			if _, err := io.CopyN(io.Discard, resp.Body, first); err != nil {
				t.Fatal(err)
			}
			// It is held up when nothing more was written for a while.
			last, since := int64(-1), time.Now()
			eventually(t, patience, func() error {
				if n := f.written.Load(); n != last {
					last, since = n, time.Now()
				}
				if time.Since(since) < 500*time.Millisecond {
					return fmt.Errorf("the server still writes, %s so far", mib(last))
				}
				return nil
			})
			stopped := memoryOf(t, pid, "VmHWM")
			t.Logf("the server is held up at %s of %s, %s were read; memory %s before, %s at its peak",
				mib(last), mib(floodSize), mib(first), mib(before), mib(stopped))
			if last-first > 64<<20 {
				t.Errorf("%s are on their way", mib(last-first))
			}
			get(t, client, s.listen+"/version") // nobody else is held up
			if n, err := io.CopyN(io.Discard, resp.Body, 256<<20); err != nil {
				t.Errorf("when the reader goes on: %d bytes, %v", n, err)
			}
			if peak := memoryOf(t, pid, "VmHWM"); peak > before+bound(64<<20) {
				t.Errorf("memory grew from %s to %s", mib(before), mib(peak))
			}
			_ = resp.Body.Close()
			eventually(t, 5*time.Second, func() error {
				if f.gone.Load() == 0 {
					return fmt.Errorf("the reader is gone and the server still writes")
				}
				return nil
			})
		})
	}
}
