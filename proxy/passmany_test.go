package proxy

import (
	"io"
	"net/http"
	"sync"
	"testing"
)

// A client that takes many large answers at once, and then is slow, has all of them wait for
// it: none is lost.
func TestPassManySlow(t *testing.T) {
	const streams, size = 24, 12 << 20
	f := startPassing(t, Options{Server: upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 64<<10)
		for range size / len(piece) {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})})
	c := f.client(t, true) // it takes 4 MiB of each before anybody reads
	var answers []*http.Response
	for range streams {
		answers = append(answers, get(t, c, "https://upstream.test/"))
	}
	wait(t, "much to be kept", func() bool {
		all, kept := f.passages(), 0
		for _, x := range all {
			x.mu.Lock()
			kept += x.owed
			x.mu.Unlock()
		}
		return len(all) < streams || kept > 12<<20
	})
	var all sync.WaitGroup
	for _, res := range answers {
		all.Go(func() {
			if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
				t.Errorf("%d of %d bytes, %v", n, size, err)
			}
			res.Body.Close()
		})
	}
	all.Wait()
	if s := f.Stats(); s.Truncated > 0 {
		t.Errorf("%+v", s)
	}
}
