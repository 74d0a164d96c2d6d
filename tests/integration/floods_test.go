//go:build linux

package integration

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// floods is how often a kind of flood was counted.
func (s *onSocket) floods(t *testing.T, kind string) float64 {
	t.Helper()
	n, _ := s.metric(t, fmt.Sprintf("execproxy_http2_floods_total{kind=%q}", kind))
	return n
}

// TestClientFloods: a client that sends what costs it little. It costs the proxy
// bounded memory and the server bounded requests, others are served meanwhile,
// and it is served itself or ended with the code that RFC 9113 has for it; what
// was ended is counted.
func TestClientFloods(t *testing.T) {
	t.Parallel()
	for _, f := range clientFloods {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			piece := make([]byte, 32<<10)
			var reached, written atomic.Int64
			u := startTLS(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/bystander" {
					reached.Add(1)
				}
				switch r.URL.Path {
				case "/watch":
					_, _ = io.WriteString(w, firstEvent)
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
				case "/mebibyte":
					for n := 0; n < 1<<20; n += len(piece) {
						if _, err := w.Write(piece); err != nil {
							return
						}
						written.Add(int64(len(piece)))
					}
				default:
					_, _ = io.Copy(io.Discard, r.Body)
					_, _ = io.WriteString(w, "{}\n")
				}
			}))
			s := newHome(t).janeOn(u.URL)
			stop := s.bystander(t)
			c := s.frames(t, f.settings...)
			c.keep = false
			if !f.deaf {
				c.read()
			}
			before := s.quiet(t)
			begin := time.Now()
			must(t, c.conn.SetWriteDeadline(begin.Add(15*time.Second))) // it may be left standing
			err := f.send(c)
			took := time.Since(begin)
			if f.stands {
				still(t, func() int64 { return reached.Load() + written.Load() })
			}
			if f.deaf {
				c.read()
			}
			ended := c.over(err)
			t.Logf("sent in %v, %v; %s; %d requests reached the server", took, err, ended, reached.Load())
			switch {
			case ended == nil && f.ends:
				t.Error("the connection goes on")
			case ended == nil:
				if f.mend != nil {
					must(t, f.mend(c))
				}
				if !f.deaf {
					if _, err := c.get("/version"); err != nil {
						t.Errorf("the connection goes on and does not serve: %v", err)
					}
				}
			case ended.code == nil && !f.deaf:
				t.Error("the connection was ended without a word")
			case ended.code != nil && !slices.Contains(f.codes, *ended.code):
				t.Errorf("ended with %v, want one of %v", *ended.code, f.codes)
			}
			if ended != nil && s.floods(t, f.kind) == 0 {
				t.Errorf("ended, and execproxy_http2_floods_total does not count it as %q", f.kind)
			}
			if n := reached.Load(); n > f.requests+1 {
				t.Errorf("%d requests reached the server, want %d at most", n, f.requests)
			}
			s.grew(t, before, f.memory)
			stop()
		})
	}
}

// still waits until a figure has not changed for a while, and returns it.
func still(t *testing.T, figure func() int64) (last int64) {
	t.Helper()
	last, since := int64(-1), time.Now()
	eventually(t, patience, func() error {
		if n := figure(); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) < 500*time.Millisecond {
			return fmt.Errorf("it still changes, %d so far", last)
		}
		return nil
	})
	return last
}

// ending is how a connection was ended.
type ending struct{ code *http2.ErrCode }

func (e *ending) String() string {
	switch {
	case e == nil:
		return "the connection goes on"
	case e.code == nil:
		return "the connection was cut"
	}
	return "ended with GOAWAY " + e.code.String()
}

// over says how the connection was ended, after a write that may have failed;
// nil: it goes on. A PING is what tells.
func (c *frameClient) over(write error) *ending {
	var last http2.ErrCode
	_ = c.conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	if write == nil {
		write = c.do(func() error { return c.WritePing(false, [8]byte{2}) })
	}
	alive := false
	err := c.until(5*time.Second, func() bool {
		if c.goAway != nil && *c.goAway != http2.ErrCodeNo {
			last = *c.goAway
			return true
		}
		alive = c.acks > 0
		return alive
	})
	switch {
	case alive && write == nil:
		return nil
	case err == nil && !alive:
		return &ending{&last}
	}
	return &ending{}
}

// bystander is another client, which is served at any time. The end says so.
func (s *onSocket) bystander(t *testing.T) (end func()) {
	t.Helper()
	client := s.client(t)
	get(t, client, s.url+"/bystander")
	done := make(chan struct{})
	var wg sync.WaitGroup
	var times []time.Duration
	wg.Go(func() {
		for {
			begin := time.Now()
			if err := fetch(t.Context(), client, s.url+"/bystander"); err != nil && t.Context().Err() == nil {
				t.Errorf("somebody else: %v", err)
			}
			times = append(times, time.Since(begin))
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	hush := sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
	t.Cleanup(hush)
	return func() {
		hush()
		slices.Sort(times)
		half, most := times[len(times)/2], times[len(times)-1]
		t.Logf("somebody else was served %d times, within %v mostly and %v at most", len(times), half, most)
		// The machine is shared: it is being served that is asked for, not speed.
		if len(times) >= 10 && half > time.Second || most > 5*time.Second {
			t.Errorf("somebody else waited %v mostly and %v at most", half, most)
		}
	}
}
