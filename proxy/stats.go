package proxy

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats are counted since New.
type Stats struct {
	Requests     uint64            // all that came in, refused ones too
	InFlight     int               // now, upgraded ones too
	Signed       uint64            // signatures made
	Upgrades     uint64            // that the server agreed to
	OpenUpgrades int               // now
	Retries      uint64            // second attempts
	Cancelled    uint64            // given up by the client before an answer
	Truncated    uint64            // responses that broke off and were aborted
	Errors       map[string]uint64 // answers of our own, by reason
}

type counters struct {
	requests, signed, upgrades, retries, cancelled, truncated atomic.Uint64

	openUpgrades atomic.Int64

	mu     sync.Mutex
	faults map[string]uint64
}

func (c *counters) fault(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.faults == nil {
		c.faults = make(map[string]uint64)
	}
	c.faults[reason]++
}

// Stats tells what has been done so far.
func (p *Proxy) Stats() Stats {
	c := &p.count
	s := Stats{
		Requests: c.requests.Load(), InFlight: p.flights.len(), Signed: c.signed.Load(),
		Upgrades: c.upgrades.Load(), OpenUpgrades: int(c.openUpgrades.Load()),
		Retries: c.retries.Load(), Cancelled: c.cancelled.Load(), Truncated: c.truncated.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Errors = maps.Clone(c.faults)
	return s
}
