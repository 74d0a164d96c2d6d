package transport

import "slices"

// Stats are counts since New, and what is open now.
type Stats struct {
	Generation        uint64 // of the identity, from 1
	Dials             uint64 // attempts to open a connection
	DialErrors        uint64 // dials that gave no usable connection
	FullHandshakes    uint64 // TLS handshakes that showed the certificate
	ResumedHandshakes uint64 // TLS handshakes that resumed a session
	Signatures        uint64 // by the private keys of all generations
	GoAways           uint64 // connections that the server asked us to leave
	DeadPeers         uint64 // connections given up because a PING had no answer
	Retries           uint64 // requests repeated because the server did not handle them

	Connections int   // of the current generation, HTTP/2, taking requests
	OpenStreams int64 // requests that the server has not answered to the end, all generations
	Upgrades    int64 // open upgraded connections
	Draining    int   // old generations that still have streams
}

// Stats returns a snapshot. It does not wait for anything.
func (t *Transport) Stats() Stats {
	s := Stats{
		Dials:             t.dials.Load(),
		DialErrors:        t.dialErrors.Load(),
		FullHandshakes:    t.full.Load(),
		ResumedHandshakes: t.resumed.Load(),
		Signatures:        t.signatures.Load(),
		GoAways:           t.goAways.Load(),
		DeadPeers:         t.deadPeers.Load(),
		Retries:           t.retries.Load(),
		OpenStreams:       t.streams.Load(),
		Upgrades:          t.upgrades.Load(),
	}
	t.mu.Lock()
	s.Generation, s.Draining = t.rotated, len(t.draining)
	gens := slices.Clone(t.draining)
	t.mu.Unlock()
	if g := t.current.Load(); g != nil {
		s.Connections = len(*g.conns.Load())
		gens = append(gens, g)
	}
	for _, g := range gens {
		s.OpenStreams += g.open()
	}
	return s
}

// open is how many streams g has.
func (g *generation) open() (n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for raw := range g.raws {
		if c := raw.h2.Load(); c != nil {
			streams, _ := c.h2.Streams()
			n += int64(streams)
		}
	}
	return n
}
