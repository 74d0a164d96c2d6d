package transport

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
	OpenStreams int64 // answers whose body has not ended, all generations
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
	t.mu.Unlock()
	if g := t.current.Load(); g != nil {
		s.Connections = len(*g.conns.Load())
	}
	return s
}

// countError is told by http2 what happens on the connection.
func (c *conn) countError(what string) {
	// A PING that was under way when we closed the connection ourselves fails, too.
	t := c.g.t
	if what == "conn_close_lost_ping" && t.ctx.Err() == nil && !c.ours.Load() {
		t.deadPeers.Add(1)
		t.log.Warn("server does not answer, connection given up", "server", t.o.Address)
	}
}
