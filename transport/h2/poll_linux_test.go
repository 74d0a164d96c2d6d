package h2

import (
	"io"
	"net/http"
	"os"
	"sync"
	"testing"

	"golang.org/x/net/http2"
)

// However connections end, and in whatever number at once, the pollers have let go of
// them and no descriptor is left.
func TestPollersLetGo(t *testing.T) {
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	polledNow := func() (n int) {
		for i := range pollers {
			pollers[i].mu.Lock()
			n += len(pollers[i].conns)
			pollers[i].mu.Unlock()
		}
		return n
	}
	round := func() {
		ts, o := handle(t, polled, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			for range 32 {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		}))
		var all sync.WaitGroup
		for i := range 60 {
			all.Go(func() {
				c := frameClient(t, ts.Listener.Addr().String(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
				_ = c.WriteWindowUpdate(0, 1<<30)
				id := c.ask(i%5 != 1 && i%2 == 0)
				switch i % 5 {
				case 0: // hangs up at once
				case 1:
					_ = c.WriteData(id, true, make([]byte, 1000))
					for d, ok := c.next().(*http2.DataFrame); !ok || !d.StreamEnded(); d, ok = c.next().(*http2.DataFrame) {
					}
				case 2:
					_, _ = c.ReadFrame()
					_ = c.WriteRSTStream(id, http2.ErrCodeCancel)
				case 3:
					_ = c.WriteRawFrame(http2.FrameData, 0, 0, nil) // an error
					_, _ = io.Copy(io.Discard, c.Conn)
				case 4:
					return // stays until the server ends it
				}
				_ = c.NetConn().Close()
			})
		}
		all.Wait()
		_ = ts.Config.Close()
		o.Wait()
		ts.Close()
	}
	if n := polledNow(); n != 0 {
		t.Fatalf("%d connections of other tests", n)
	}
	round() // makes what stays: the pollers' own descriptors
	before := open()
	for range 3 {
		round()
	}
	if n := polledNow(); n != 0 {
		t.Errorf("%d connections are polled", n)
	}
	if after := open(); after > before+3*12 { // of the clients, t.Cleanup closes what case 4 has open
		t.Errorf("%d descriptors, %d before", after, before)
	}
}
