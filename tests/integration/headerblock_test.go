//go:build linux

package integration

import (
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestHalfHeaderBlock: a header block that does not come to its end is cut after
// ten seconds, whatever else comes, and what else the connection does goes on
// until then.
func TestHalfHeaderBlock(t *testing.T) {
	t.Parallel()
	const limit = 12 * time.Second
	u := newUpstream(t)
	s := newHome(t).janeOn(u.url)
	half := func(c *frameClient, id uint32) error {
		return c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true, BlockFragment: c.block(c.fieldsOf("GET", "/half")...)})
	}
	var wg sync.WaitGroup
	for name, begin := range map[string]struct {
		first func(c *frameClient) error
		feed  func(c *frameClient) error
	}{
		"silence behind HEADERS": {first: func(c *frameClient) error { return half(c, 1) }},
		"a CONTINUATION at times": {
			first: func(c *frameClient) error { return half(c, 1) },
			feed:  func(c *frameClient) error { return c.WriteContinuation(1, false, []byte{}) },
		},
		"half a frame's payload": {first: func(c *frameClient) error {
			block := c.block(c.fieldsOf("GET", "/half")...)
			_, err := c.out.Write(http2Frame(1, 5, 1, block)[:9+len(block)/2])
			return err
		}},
		"half a frame's header": {first: func(c *frameClient) error {
			_, err := c.out.Write([]byte{0, 0, 10, 1, 5})
			return err
		}},
		"behind an open watch": {first: func(c *frameClient) error {
			return half(c, 3)
		}},
	} {
		c := s.frames(t).read()
		c.spend()
		if name == "behind an open watch" {
			_, err := c.send("GET", "/watch", true)
			must(t, err)
			must(t, c.until(patience, func() bool { a := c.answers[1]; return a != nil && a.size > 0 }))
		}
		wg.Go(func() {
			start := time.Now()
			if err := c.do(func() error { return begin.first(c) }); err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			timer := time.NewTimer(limit + 3*time.Second)
			defer timer.Stop()
			tick := time.NewTicker(500 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-c.done:
					took := time.Since(start)
					t.Logf("%s: cut after %v", name, took)
					if took > limit {
						t.Errorf("%s: cut after %v, want %v at most", name, took, limit)
					}
					return
				case <-timer.C:
					t.Errorf("%s: not cut within %v", name, limit+3*time.Second)
					return
				case <-tick.C:
					if begin.feed != nil {
						_ = c.do(func() error { return begin.feed(c) })
					}
				}
			}
		})
	}
	wg.Wait()
	if n := u.countOf("/half"); n > 0 {
		t.Errorf("%d halves of requests reached the server", n)
	}
	get(t, s.client(t), u.url+"/version")
}

// TestHeaderLimit: a header of 900 KiB passes, one above a mebibyte is answered
// 431 or reset, and the connection is none the worse: its compression state, for
// one, is still the client's.
func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	s := newHome(t).janeOn(u.url)
	c := s.frames(t).read()
	before := s.quiet(t)
	ask := func(path string, size int) frameAnswer {
		t.Helper()
		fields := c.fieldsOf("GET", path, "x-indexed-"+strings.Trim(path, "/"), "entered into the table")
		for n := 0; n < size; n += 4096 {
			fields = append(fields, "x-filler", strings.Repeat("x", 4096-8-32))
		}
		var id uint32
		must(t, c.do(func() error {
			id = c.next
			c.next += 2
			block, first := c.block(fields...), true
			for len(block) > 0 || first {
				n := min(len(block), 16<<10)
				end := n == len(block)
				var err error
				if first {
					err = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true, EndHeaders: end, BlockFragment: block[:n]})
				} else {
					err = c.WriteContinuation(id, end, block[:n])
				}
				if err != nil {
					return err
				}
				first, block = false, block[n:]
			}
			return nil
		}))
		a, err := c.answer(id)
		must(t, err)
		return a
	}
	for i, size := range []int{0, 600 << 10, 1100 << 10, 2 << 20, 0} {
		a := ask([]string{"/first", "/below", "/above", "/twice", "/last"}[i], size)
		t.Logf("%d KiB: status %q, reset %v", size>>10, a.status, a.wasCut)
		switch {
		case size > 1<<20 && a.status != "431" && !a.wasCut:
			t.Errorf("a header of %d bytes is answered %q: %s", size, a.status, a.body.String())
		case size < 1<<20 && a.status != "200":
			t.Errorf("a header of %d bytes is answered %q, reset %v %v: %s", size, a.status, a.wasCut, a.reset, a.body.String())
		}
	}
	if n := u.countOf("/above") + u.countOf("/twice"); n > 0 {
		t.Errorf("%d that are too large reached the server", n)
	}
	if got := u.last(t, "/last").header.Get("X-Indexed-Last"); got != "entered into the table" {
		t.Errorf("the last arrives with %q", got)
	}
	s.grew(t, before, 32<<20)
}
