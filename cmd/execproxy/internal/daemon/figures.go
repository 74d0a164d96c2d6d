package daemon

import (
	"maps"

	"github.com/execproxy/execproxy/proxy"
	"github.com/execproxy/execproxy/transport"
)

// figures are what fronts counted: figures of a proxy do not go back when its
// configuration changes, and whoever is served by a former front still is.
type figures struct {
	proxy      proxy.Stats
	upstream   transport.Stats // but for what is of the present moment
	signatures uint64          // of signers; the transport counts those of keys
}

// figures are all zero of one without a proxy.
func (f *front) figures() (n figures) {
	if f.proxy != nil {
		n = figures{f.proxy.Stats(), f.upstream.Stats(), f.id.signatures.Load()}
	}
	return n
}

// figures are those of all fronts that there were.
func (d *Daemon) figures() figures {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.past
	n.proxy.Errors = maps.Clone(n.proxy.Errors)
	for _, f := range d.former {
		n.add(f.figures())
	}
	n.add(d.front.Load().figures())
	return n
}

func (n *figures) add(m figures) {
	n.signatures += m.signatures
	p, q := &n.proxy, &m.proxy
	p.Requests += q.Requests
	p.InFlight += q.InFlight
	p.Signed += q.Signed
	p.Upgrades += q.Upgrades
	p.OpenUpgrades += q.OpenUpgrades
	p.Retries += q.Retries
	p.Cancelled += q.Cancelled
	p.Truncated += q.Truncated
	for reason, count := range q.Errors {
		if p.Errors == nil {
			p.Errors = map[string]uint64{}
		}
		p.Errors[reason] += count
	}
	u, v := &n.upstream, &m.upstream
	u.Generation = v.Generation // the last one's
	u.Dials += v.Dials
	u.DialErrors += v.DialErrors
	u.FullHandshakes += v.FullHandshakes
	u.ResumedHandshakes += v.ResumedHandshakes
	u.Signatures += v.Signatures
	u.GoAways += v.GoAways
	u.DeadPeers += v.DeadPeers
	u.Retries += v.Retries
}
