//go:build linux

package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

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
