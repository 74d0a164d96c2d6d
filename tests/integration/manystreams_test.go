//go:build linux

package integration

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/net/http2"
)

// tally watches how many streams are open on each connection of a frameServer
// whose requests are watches.
type tally struct {
	t     *testing.T
	most  uint32 // that a connection was told when it came
	mu    sync.Mutex
	open  map[*frameConn][]frameRequest
	limit map[*frameConn]int // what it was told later
}

func newTally(t *testing.T, most uint32) (*tally, *frameServer) {
	y := &tally{t: t, most: most, open: map[*frameConn][]frameRequest{}, limit: map[*frameConn]int{}}
	return y, newFrameServer(t, frameScript{
		settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: most}},
		header: func(q frameRequest) {
			if q.path() != "/watch" {
				q.ok()
				return
			}
			y.mu.Lock()
			defer y.mu.Unlock()
			limit, told := y.limit[q.c]
			if !told {
				limit = int(most)
			}
			if y.open[q.c] = append(y.open[q.c], q); len(y.open[q.c]) > limit {
				t.Errorf("connection %d has %d streams, and %d are allowed", q.c.number, len(y.open[q.c]), limit)
				_ = q.c.WriteRSTStream(q.id, http2.ErrCodeRefusedStream)
				return
			}
			q.answer(false)
			_ = q.c.WriteData(q.id, false, []byte(firstEvent))
		},
		reset: func(c *frameConn, id uint32, _ http2.ErrCode) {
			y.mu.Lock()
			defer y.mu.Unlock()
			y.open[c] = slices.DeleteFunc(y.open[c], func(q frameRequest) bool { return q.id == id })
		},
	})
}

// end ends all watches.
func (y *tally) end() {
	y.mu.Lock()
	defer y.mu.Unlock()
	for c, open := range y.open {
		for _, q := range open {
			_ = c.do(func() error { return c.WriteData(q.id, true, nil) })
		}
		delete(y.open, c)
	}
}

// tell sends an event to all watches.
func (y *tally) tell() {
	y.mu.Lock()
	defer y.mu.Unlock()
	var wg sync.WaitGroup
	for c, open := range y.open {
		wg.Go(func() {
			_ = c.do(func() error {
				for _, q := range open {
					if err := c.WriteData(q.id, false, []byte(firstEvent)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
}

// left is how many watches are open on connections that are there.
func (y *tally) left() (n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for c, open := range y.open {
		select {
		case <-c.gone:
		default:
			n += len(open)
		}
	}
	return n
}

// watches opens n of them and waits until the first event of each is there.
func (c *frameClient) watches(n int) (ids []uint32) {
	c.t.Helper()
	for range n {
		id, err := c.send("GET", "/watch", true)
		must(c.t, err)
		ids = append(ids, id)
	}
	err := c.until(patience, func() bool {
		for _, id := range ids {
			if a := c.answers[id]; a == nil || a.size < int64(len(firstEvent)) {
				return false
			}
		}
		return true
	})
	if err != nil {
		c.t.Fatalf("%d watches: %v", n, err)
	}
	return ids
}

// TestMaxConcurrentStreams: as many connections as the server's limit makes
// necessary and not one more, with one full handshake; none is made when there is
// room again.
func TestMaxConcurrentStreams(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most    uint32
		watches int
		conns   int
	}{{1, 5, 5}, {10, 35, 4}, {100, 100, 1}, {100, 250, 3}} {
		t.Run(fmt.Sprintf("%d of %d each", c.watches, c.most), func(t *testing.T) {
			t.Parallel()
			y, u := newTally(t, c.most)
			s := newHome(t).janeOn(u.url)
			k := s.frames(t).read()
			for round := range 2 {
				ids := k.watches(c.watches)
				all, open, resumed := u.counts()
				t.Logf("%d watches, %d each: %d connections, %d open, %d resumed", c.watches, c.most, all, open, resumed)
				if open != c.conns || all != c.conns {
					t.Errorf("round %d: %d connections are open of %d, want %d", round, open, all, c.conns)
				}
				if resumed != all-1 {
					t.Errorf("%d of %d handshakes were resumed", resumed, all)
				}
				y.end()
				for _, id := range ids {
					if a, err := k.answer(id); err != nil || !a.ended {
						t.Fatalf("a watch that the server ended: %v", err)
					}
				}
			}
			if _, err := k.get("/version"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMaxConcurrentStreamsLowered: a limit that is lowered while streams are open
// holds for new ones; the old go on.
func TestMaxConcurrentStreamsLowered(t *testing.T) {
	t.Parallel()
	y, u := newTally(t, 10)
	s := newHome(t).janeOn(u.url)
	k := s.frames(t).read()
	k.watches(6)
	y.mu.Lock()
	var first *frameConn
	for first = range y.open {
	}
	y.mu.Unlock()
	must(t, first.do(func() error {
		return first.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
	}))
	// What goes out behind the acknowledgement keeps to it.
	eventually(t, patience, func() error {
		if n := first.acks.Load(); n < 2 {
			return fmt.Errorf("%d SETTINGS are acknowledged", n)
		}
		return nil
	})
	y.mu.Lock()
	y.limit[first] = 2
	before := len(y.open[first])
	y.mu.Unlock()
	if before != 6 {
		t.Fatalf("%d watches on the first connection", before)
	}
	ids := k.watches(3)
	y.mu.Lock()
	if n := len(y.open[first]); n != before {
		t.Errorf("%d watches on the first connection, there were %d", n, before)
	}
	y.mu.Unlock()
	if all, _, _ := u.counts(); all != 2 {
		t.Errorf("%d connections, want 2", all)
	}
	y.end()
	for _, id := range append(ids, 1, 3, 5, 7, 9, 11) {
		if a, err := k.answer(id); err != nil || !a.ended || a.wasCut {
			t.Errorf("watch %d: %+v, %v", id, a.reset, err)
		}
	}
	if _, err := k.get("/version"); err != nil {
		t.Error(err)
	}
}
