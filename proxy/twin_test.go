package proxy

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

var updateTwins = flag.Bool("update-twins", false, "write testdata/twins.golden")

// newTwinA is a proxy that is net/http on both sides: the measure.
func newTwinA(t testing.TB, o Options) *front {
	o.Transport = outbound(t, true)
	return startWith(t, o, false, false, func(s *http.Server) { s.TLSNextProto = nil })
}

// newTwinB is the proxy that is held against it: it is frames on both sides, whichever way a
// request goes.
func newTwinB(t testing.TB, o Options) *front {
	s := newTestStreams(t, o.Server)
	o.Streams, o.Transport = s, s
	return start(t, o, false)
}

// twins are two proxies with the same options, each before an upstream of the
// same kind.
type twins struct {
	t    testing.TB
	a, b *twin
	held bool
}

func newTwins(t testing.TB, frames bool, o Options) *twins {
	return &twins{t: t, held: o.HashBody,
		a: newTwin(t, "a", frames, newTwinA, o),
		b: newTwin(t, "b", frames, newTwinB, o)}
}

// leavesNothing waits, at the end of the test, for the goroutines that it began:
// net/http's server keeps a connection for a second after its GOAWAY.
func leavesNothing(t testing.TB) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		err := goleak.Find(before)
		for n := 0; err != nil && n < 10; n++ {
			err = goleak.Find(before)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// play runs one exchange through both and tells what is different.
func (w *twins) play(x *script, fresh bool) ([2]*result, string) {
	var results [2]*result
	var both sync.WaitGroup
	both.Go(func() { results[0] = w.a.run(x, fresh) })
	both.Go(func() { results[1] = w.b.run(x, fresh) })
	both.Wait()
	differences := compare(x, [2]string{w.a.name, w.b.name}, results)
	if results[0].hung || results[1].hung {
		differences += "\n" + stacks()
	}
	return results, differences
}

// FuzzTwins: whatever a client and a server say, the proxy does with it what
// the one of net/http does. See step for the language.
func FuzzTwins(f *testing.F) {
	for _, s := range twinSeeds() {
		f.Add(s.client, s.server)
	}
	leavesNothing(f)
	web, frames := newTwins(f, false, Options{}), newTwins(f, true, Options{})
	f.Fuzz(func(t *testing.T, client, server string) {
		x := newScript(client, server, false)
		if len(x.client) == 0 {
			return
		}
		w := web
		if x.frames {
			w = frames
		}
		if _, differences := w.play(x, false); differences != "" {
			t.Errorf("%s\nclient:\n%s\nserver:\n%s", differences, client, server)
		}
	})
}

// TestTwinSeeds: what net/http makes of each seed. It says that the seeds are
// about something, and what changes with Go.
func TestTwinSeeds(t *testing.T) {
	var b strings.Builder
	leavesNothing(t)
	web, frames := newTwins(t, false, Options{}), newTwins(t, true, Options{})
	for _, s := range twinSeeds() {
		x := newScript(s.client, s.server, false)
		w := web
		if x.frames {
			w = frames
		}
		results, differences := w.play(x, false)
		if differences != "" {
			t.Errorf("%s: %s\nclient:\n%s\nserver:\n%s", s.name, differences, s.client, s.server)
		}
		fmt.Fprintf(&b, "%q: %s\n", s.name, results[0].summary(x))
	}
	golden := filepath.Join("testdata", "twins.golden")
	if *updateTwins {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(golden, []byte(b.String()), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(want), "\n")
	for i, line := range strings.Split(b.String(), "\n") {
		if i >= len(lines) || line != lines[i] {
			t.Fatalf("net/http did something else; with -update-twins it is written down:\n%s", line)
		}
	}
}
