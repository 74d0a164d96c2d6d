package socket

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

// Waits between attempts to accept while the process or the system is out of something.
const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = 250 * time.Millisecond
)

// patient is a listener that outlives a shortage. net/http retries when descriptors run out, but ends the server on
// ENOBUFS, ENOMEM and what a firewall can answer.
type patient struct {
	net.Listener
	log  *slog.Logger
	done chan struct{}
	once sync.Once
}

func newPatient(l net.Listener, log *slog.Logger) *patient {
	return &patient{Listener: l, log: log, done: make(chan struct{})}
}

func (p *patient) Accept() (net.Conn, error) {
	var delay time.Duration
	for {
		c, err := p.Listener.Accept()
		if err == nil {
			if delay > 0 {
				p.log.Info("accepting connections again", "listener", p.Addr().String())
			}
			return c, nil
		}
		if !passing(err) {
			return nil, err
		}
		if delay == 0 {
			p.log.Warn("cannot accept connections, trying on", "listener", p.Addr().String(), "error", err)
			delay = minBackoff
		} else {
			delay = min(2*delay, maxBackoff)
		}
		timer := time.NewTimer(delay)
		select {
		case <-p.done:
			timer.Stop()
			return nil, net.ErrClosed
		case <-timer.C:
		}
	}
}

func (p *patient) Close() error {
	p.once.Do(func() { close(p.done) })
	return p.Listener.Close()
}
