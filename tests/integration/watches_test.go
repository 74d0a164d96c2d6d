//go:build linux

package integration

import (
	"crypto/tls"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// TestManyWatches: ten thousand watches that wait, a hundred on each of a hundred
// connections, cost 5 KiB each, and all of them get what comes.
// EXECPROXY_TEST_WATCHES says how many.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	const each = 100
	n := 10_000
	if v := os.Getenv("EXECPROXY_TEST_WATCHES"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		must(t, err)
	}
	y, u := newTally(t, each)
	s := newHome(t).janeOn(u.url)
	get(t, s.client(t), u.url+"/version")
	conns := make([]*frameClient, n/each)
	for i := range conns {
		conns[i] = s.frames(t)
		conns[i].keep = false
		conns[i].read()
	}
	before := s.quiet(t)
	opened := make([][]uint32, len(conns))
	begin := time.Now()
	for i, c := range conns {
		opened[i] = c.watches(each)
	}
	now, _ := s.rss(t)
	all, open, resumed := u.counts()
	t.Logf("%d watches after %v, over %d connections of %d, %d resumed: %s before, %s with them: %.1f KiB each",
		n, time.Since(begin), open, all, resumed, mib(before), mib(now), float64(now-before)/float64(n)/1024)
	if each := (now - before) / int64(n); each > bound(5<<10) {
		t.Errorf("a watch costs %d bytes", each)
	}
	if open != len(conns) {
		t.Errorf("%d connections to the server, want %d", open, len(conns))
	}
	begin = time.Now()
	y.tell()
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			if err := c.until(patience, func() bool {
				for _, id := range opened[i] {
					if c.answers[id].size < int64(2*len(firstEvent)) {
						return false
					}
				}
				return true
			}); err != nil {
				t.Errorf("the second event: %v", err)
			}
		})
	}
	wg.Wait()
	t.Logf("an event is with all of them after %v", time.Since(begin))
	for _, c := range conns {
		_ = c.conn.NetConn().Close()
	}
	eventually(t, patience, func() error {
		if n := y.left(); n > 0 {
			return fmt.Errorf("%d watches are open at the server though the clients are gone", n)
		}
		return nil
	})
}

// TestManyConnections: a thousand clients are served, at once, and what each of
// them costs has its bounds.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	const n = 1000
	u := newFrameServer(t, frameScript{})
	s := newHome(t).janeOn(u.url)
	config := s.d.tls(t, s.url, "h2")
	get(t, s.client(t), u.url+"/version")
	before := s.quiet(t)
	raws, conns := make([]*tls.Conn, n), make([]*frameClient, n)
	turns := make(chan struct{}, 16)
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range raws {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			var err error
			if raws[i], err = s.dialTLS(config); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i, raw := range raws {
		conns[i] = s.framesOn(t, raw).read()
		if _, err := conns[i].get("/version"); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	now, _ := s.rss(t)
	t.Logf("%d connections after %v: %s before, %s with them: %.1f KiB each", n, time.Since(begin), mib(before), mib(now), float64(now-before)/n/1024)
	if each := (now - before) / n; each > bound(48<<10) {
		t.Errorf("a connection costs %d bytes", each)
	}
	begin = time.Now()
	for i, c := range conns {
		wg.Go(func() {
			if _, err := c.get("/again"); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	all, _, _ := u.counts()
	t.Logf("all asked at once and were served after %v, over %d connections to the server", time.Since(begin), all)
	if got := len(u.all("/again")); got != n {
		t.Errorf("%d of %d requests reached the server", got, n)
	}
	if all > 4 {
		t.Errorf("it took %d connections to the server", all)
	}
	if clients, _ := s.metric(t, "execproxy_client_connections"); clients < n {
		t.Errorf("execproxy_client_connections is %v", clients)
	}
	for _, c := range conns {
		_ = c.conn.NetConn().Close()
	}
	eventually(t, patience, func() error {
		if n, _ := s.metric(t, "execproxy_client_connections"); n > 2 {
			return fmt.Errorf("%v client connections are there though the clients are gone", n)
		}
		return nil
	})
}
