//go:build linux

package integration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestGoAwayAllTheTime: a server that sends a connection away after every fifty
// requests, as one behind `--goaway-chance` and a load balancer does. No client of
// two thousand requests notices, each is processed once, and what was dropped is
// sent again.
func TestGoAwayAllTheTime(t *testing.T) {
	t.Parallel()
	const workers, each, between = 16, 125, 50
	type life struct {
		count int
		last  uint32 // of GOAWAY; 0: not said yet
		most  uint32 // the highest that was processed
	}
	var mu sync.Mutex
	lives := map[*frameConn]*life{}
	processed := map[string]int{}
	dropped := 0
	u := newFrameServer(t, whole(func(q frameRequest) {
		mu.Lock()
		defer mu.Unlock()
		l := lives[q.c]
		if l == nil {
			l = &life{}
			lives[q.c] = l
		}
		if l.last != 0 && q.id > l.last {
			dropped++
			return
		}
		processed[q.path()]++
		l.count++
		l.most = max(l.most, q.id)
		if l.count == between {
			l.last = l.most
			_ = q.c.WriteGoAway(l.last, http2.ErrCodeNo, nil)
		}
		if rand.N(4) == 0 {
			time.AfterFunc(rand.N(20*time.Millisecond), q.later)
			return
		}
		q.ok()
	}))
	s := newHome(t).janeOn(u.url)
	client := s.client(t)
	var wg sync.WaitGroup
	var failed atomic.Int64
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				if _, err := ask(client, i, fmt.Sprintf("%s/work/%d/%d", u.url, w, i)); err != nil && failed.Add(1) < 5 {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	all, _, resumed := u.counts()
	mu.Lock()
	defer mu.Unlock()
	n := 0
	for path, times := range processed {
		if strings.HasPrefix(path, "/work/") {
			n++
		}
		if times != 1 {
			t.Errorf("%s was processed %d times", path, times)
		}
	}
	t.Logf("%d requests over %d connections, %d resumed; %d were dropped, %d failed", n, all, resumed, dropped, failed.Load())
	if n != workers*each {
		t.Errorf("%d of %d requests were processed", n, workers*each)
	}
	if all < workers*each/between || all > 3*workers*each/between {
		t.Errorf("it took %d connections", all)
	}
	if resumed != all-1 {
		t.Errorf("%d of %d handshakes were resumed", resumed, all)
	}
	eventually(t, patience, func() error {
		if _, open, _ := u.counts(); open > 2 {
			return fmt.Errorf("%d connections are open", open)
		}
		return nil
	})
}
