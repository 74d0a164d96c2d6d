package proxy

import (
	"sync"
	"sync/atomic"
)

// flight is a request that is being served.
type flight struct {
	cut     func()   // cancels it; safe to call at any time, and more than once
	owner   *passage // the same, of a request that is passed from stream to stream
	endless bool     // ends only when somebody ends it: a watch, a followed log
	shard   uint32
}

// flights knows what is open, so that Close reaches it. It is split, because
// every request passes through it.
type flights struct {
	next   atomic.Uint32
	ended  atomic.Bool
	finite atomic.Bool // nothing endless begins any more
	shards [16]struct {
		mu   sync.Mutex
		open map[*flight]struct{}
		_    [40]byte // keeps neighbours off one cache line
	}
}

func newFlights() *flights {
	f := &flights{}
	for i := range f.shards {
		f.shards[i].open = make(map[*flight]struct{})
	}
	return f
}

// add registers x; false: everything is closed.
func (f *flights) add(x *flight) bool {
	x.shard = f.next.Add(1) % uint32(len(f.shards))
	s := &f.shards[x.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	// Under the lock: cut has not been through this shard yet, or x is not in it.
	if f.ended.Load() || x.endless && f.finite.Load() {
		return false
	}
	s.open[x] = struct{}{}
	return true
}

// also makes cut a part of what close does to x; false: it has been cut already.
func (f *flights) also(x *flight, cut func()) bool {
	s := &f.shards[x.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.ended.Load() {
		return false
	}
	first := x.cut
	x.cut = func() { first(); cut() }
	return true
}

func (f *flights) remove(x *flight) {
	s := &f.shards[x.shard]
	s.mu.Lock()
	delete(s.open, x)
	s.mu.Unlock()
}

func (f *flights) close() {
	f.ended.Store(true)
	f.cut(func(*flight) bool { return true })
}

// cut cancels what is open and chosen.
func (f *flights) cut(choose func(*flight) bool) {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		cuts := make([]func(), 0, len(s.open))
		for x := range s.open {
			switch {
			case !choose(x):
			case x.owner != nil:
				cuts = append(cuts, x.owner.cut)
			default:
				cuts = append(cuts, x.cut)
			}
		}
		s.mu.Unlock()
		for _, cut := range cuts {
			cut()
		}
	}
}

func (f *flights) closed() bool { return f.ended.Load() }

func (f *flights) len() int {
	n := 0
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		n += len(s.open)
		s.mu.Unlock()
	}
	return n
}
