//go:build linux

package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// stamps is a stream in which every eight bytes say where they are. What is
// written to it must be that stream.
type stamps struct{ at int64 }

func (s *stamps) Read(p []byte) (int, error) {
	n := len(p) &^ 7
	for i := 0; i < n; i += 8 {
		binary.BigEndian.PutUint64(p[i:], uint64(s.at))
		s.at += 8
	}
	return n, nil
}

// checked compares what comes with the stream of stamps.
type checked struct {
	want stamps
	rest []byte // of the stream, not compared yet
	buf  [64 << 10]byte
	n    int64
}

func (c *checked) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		if len(c.rest) == 0 {
			_, _ = c.want.Read(c.buf[:])
			c.rest = c.buf[:]
		}
		n := min(len(p)-done, len(c.rest))
		if !bytes.Equal(p[done:done+n], c.rest[:n]) {
			return done, fmt.Errorf("what comes differs between %d and %d", c.n, c.n+int64(n))
		}
		done, c.rest, c.n = done+n, c.rest[n:], c.n+int64(n)
	}
	return len(p), nil
}

const (
	// endless is what is sent at most: a log of five gigabytes.
	endless = 5 << 30
	// firstPart is read before the standstill, and secondPart behind it.
	firstPart, secondPart = 64 << 20, 256 << 20
)

// reservoir is an API server with a log of five gigabytes, and one that takes
// uploads of that size as slowly as it is told.
type reservoir struct {
	sent, gone atomic.Int64
	wrong      atomic.Pointer[error] // with an upload
	stopped    chan struct{}         // closed when it reads no more
	more       chan struct{}         // closed when it shall read on
}

func (r *reservoir) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch req.URL.Path {
	case "/log":
		defer r.gone.Add(1)
		piece := make([]byte, 64<<10)
		for log := (stamps{}); log.at < endless; {
			_, _ = log.Read(piece)
			if _, err := w.Write(piece); err != nil {
				return
			}
			r.sent.Add(int64(len(piece)))
		}
	case "/upload":
		var got checked
		_, err := io.CopyN(&got, req.Body, firstPart)
		close(r.stopped)
		if err == nil {
			<-r.more
			_, err = io.CopyN(&got, req.Body, secondPart)
		}
		if err != nil {
			r.wrong.Store(&err)
		}
		_, _ = fmt.Fprint(w, got.n)
	case "/ignore":
		defer r.gone.Add(1)
		<-req.Context().Done()
	default:
		_, _ = io.WriteString(w, "{}\n")
	}
}

// source is the body of an upload, which counts what was taken of it.
type source struct {
	stamps
	taken *atomic.Int64
}

func (s *source) Read(p []byte) (int, error) {
	if s.at >= endless {
		return 0, io.EOF
	}
	n, err := s.stamps.Read(p)
	s.taken.Store(s.at)
	return n, err
}

// standstill tests both ways in: over HTTP/2 the rest of the same connection, too.
func standstill(t *testing.T, test func(t *testing.T, r *reservoir, s *onSocket, client *http.Client)) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http1"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			r := &reservoir{stopped: make(chan struct{}), more: make(chan struct{})}
			s := newHome(t).janeOn(startTLS(t, "127.0.0.1", r).URL)
			client := s.client(t)
			client.Timeout = 0
			if protocol == "http1" {
				tr := client.Transport.(*http.Transport)
				tr.ForceAttemptHTTP2, tr.TLSClientConfig.NextProtos = false, []string{"http/1.1"}
			}
			get(t, client, s.url+"/version")
			test(t, r, s, client)
		})
	}
}

// others asks on the same connection, where it is HTTP/2, and on another.
func (s *onSocket) others(t *testing.T, client *http.Client) {
	t.Helper()
	for range 20 {
		get(t, client, s.url+"/version")
	}
	get(t, s.client(t), s.url+"/version")
}

// TestReaderStops: a log of five gigabytes, and a reader that has stopped reading.
// The server is held up; the proxy keeps nothing; all bytes come when the reader
// goes on.
func TestReaderStops(t *testing.T) {
	standstill(t, func(t *testing.T, r *reservoir, s *onSocket, client *http.Client) {
		before := s.quiet(t)
		resp, err := client.Get(s.url + "/log")
		must(t, err)
		defer func() { _ = resp.Body.Close() }()
		var got checked
		if _, err := io.CopyN(&got, resp.Body, firstPart); err != nil {
			t.Fatal(err)
		}
		held := still(t, r.sent.Load)
		t.Logf("the server is held up at %s of %s, %s were read", mib(held), mib(endless), mib(got.n))
		if held-firstPart > 32<<20 {
			t.Errorf("%s are on their way", mib(held-firstPart))
		}
		s.others(t, client)
		if now := r.sent.Load(); now != held {
			t.Errorf("meanwhile the server has sent %d bytes more", now-held)
		}
		s.grew(t, before, 16<<20)
		begin := time.Now()
		if _, err := io.CopyN(&got, resp.Body, secondPart); err != nil {
			t.Errorf("when the reader goes on: %d bytes, %v", got.n, err)
		}
		t.Logf("another %s after %v", mib(secondPart), time.Since(begin))
		s.grew(t, before, 16<<20)
		_ = resp.Body.Close()
		eventually(t, 5*time.Second, func() error {
			if r.gone.Load() == 0 {
				return fmt.Errorf("the reader is gone and the server still writes")
			}
			return nil
		})
	})
}

// TestServerStops: an upload of five gigabytes to a server that has stopped
// reading. The client is held up, and all bytes arrive when the server goes on.
func TestServerStops(t *testing.T) {
	standstill(t, func(t *testing.T, r *reservoir, s *onSocket, client *http.Client) {
		before := s.quiet(t)
		var taken atomic.Int64
		done := make(chan error, 1)
		go func() {
			req, err := http.NewRequest(http.MethodPost, s.url+"/upload", &source{taken: &taken})
			if err == nil {
				req.ContentLength = endless
				var resp *http.Response
				if resp, err = client.Do(req); err == nil {
					var answer []byte
					answer, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					if err == nil && string(answer) != fmt.Sprint(firstPart+secondPart) {
						err = fmt.Errorf("answered %s %s", resp.Status, answer)
					}
				}
			}
			done <- err
		}()
		select {
		case <-r.stopped:
		case err := <-done:
			t.Fatalf("the upload ended: %v", err)
		case <-time.After(patience):
			t.Fatal("the upload does not arrive")
		}
		held := still(t, taken.Load)
		t.Logf("the client is held up at %s of %s, %s were taken", mib(held), mib(endless), mib(firstPart))
		if held-firstPart > 32<<20 {
			t.Errorf("%s are on their way", mib(held-firstPart))
		}
		s.others(t, client)
		if now := taken.Load(); now != held {
			t.Errorf("meanwhile the client has sent %d bytes more", now-held)
		}
		s.grew(t, before, 16<<20)
		close(r.more)
		select {
		case err := <-done:
			// Over HTTP/1.1 the rest of the upload may meet a closed connection.
			if err != nil {
				t.Logf("the client's end of it: %v", err)
			}
		case <-time.After(patience):
			t.Error("the upload does not end")
		}
		if p := r.wrong.Load(); p != nil {
			t.Errorf("what arrived: %v", *p)
		}
		s.grew(t, before, 16<<20)
	})
}

// TestManyReadersStop: a hundred logs whose readers have stopped, by ten clients.
// However the proxy shares its connections to the server, nobody else waits for
// them, and they cost bounded memory.
func TestManyReadersStop(t *testing.T) {
	t.Parallel()
	const clients, logs = 10, 10
	r := &reservoir{}
	s := newHome(t).janeOn(startTLS(t, "127.0.0.1", r).URL)
	client := s.client(t)
	get(t, client, s.url+"/version")
	before := s.quiet(t)
	var all []*frameClient
	for range clients {
		c := s.frames(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		c.credit, c.keep = false, false
		all = append(all, c.read())
		for range logs {
			_, err := c.send("GET", "/log", true)
			must(t, err)
		}
	}
	held := still(t, r.sent.Load)
	t.Logf("the server is held up at %s for %d logs", mib(held), clients*logs)
	for range 20 {
		get(t, client, s.url+"/version")
		resp, err := client.Get(s.url + "/log")
		must(t, err)
		var got checked
		if _, err := io.CopyN(&got, resp.Body, 4<<20); err != nil {
			t.Errorf("somebody else's log: %d bytes, %v", got.n, err)
		}
		_ = resp.Body.Close()
	}
	s.grew(t, before, 64<<20)
	for i, c := range all {
		_ = c.conn.NetConn().Close()
		<-c.done
		if i%2 == 0 {
			get(t, client, s.url+"/version")
		}
	}
	eventually(t, 10*time.Second, func() error {
		if n := r.gone.Load(); n < clients*logs {
			return fmt.Errorf("the readers are gone, and the server has noticed %d of %d", n, clients*logs)
		}
		return nil
	})
	now, _ := s.rss(t)
	t.Logf("memory is %s when they are gone", mib(now))
}

// TestManyUploadsStop: a hundred uploads by ten clients to a server that reads
// none of them. They cost bounded memory, others are served, and the server hears
// when they are given up.
func TestManyUploadsStop(t *testing.T) {
	t.Parallel()
	const clients, uploads = 10, 10
	r := &reservoir{}
	s := newHome(t).janeOn(startTLS(t, "127.0.0.1", r).URL)
	client := s.client(t)
	get(t, client, s.url+"/version")
	before := s.quiet(t)
	ctx, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer giveUp()
	var taken [clients * uploads]atomic.Int64
	for i := range clients {
		own := s.client(t)
		own.Timeout = 0
		for j := range uploads {
			wg.Go(func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/ignore", &source{taken: &taken[i*uploads+j]})
				if err != nil {
					t.Error(err)
					return
				}
				if resp, err := own.Do(req); err == nil {
					_ = resp.Body.Close()
					t.Errorf("an upload that nobody read is answered %s", resp.Status)
				}
			})
		}
	}
	held := still(t, func() (n int64) {
		for i := range taken {
			n += taken[i].Load()
		}
		return n
	})
	t.Logf("the clients are held up at %s for %d uploads", mib(held), clients*uploads)
	s.others(t, client)
	s.grew(t, before, 64<<20)
	giveUp()
	eventually(t, 10*time.Second, func() error {
		if n := r.gone.Load(); n < clients*uploads {
			return fmt.Errorf("the clients are gone, and the server has noticed %d of %d", n, clients*uploads)
		}
		return nil
	})
	s.others(t, client)
}
