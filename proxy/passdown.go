package proxy

import (
	"golang.org/x/net/http2"

	"github.com/execproxy/execproxy/transport/h2"
)

// clientSide is the passage as the client's stream sees it: the request comes in here.
type clientSide passage

// Header implements h2.Receiver; a client's comes to Streams.Begin.
func (*clientSide) Header(*h2.Batch, []h2.Field, bool) {}

// Data implements h2.Receiver.
func (c *clientSide) Data(b *h2.Batch, p []byte, end bool) {
	x := (*passage)(c)
	x.mu.Lock()
	if end {
		x.gotAll = true
	}
	if x.over {
		next := x.handedTo()
		x.mu.Unlock()
		if next != nil {
			next.Data(b, p, end)
			return
		}
		x.down.Consumed(b, len(p))
		return
	}
	x.got += int64(len(p))
	l := x.request
	if l != nil && l.kept {
		l.body = append(l.body, p...) // no more than its length, which the connection checks
	}
	if l != nil && l.whole && x.up == nil {
		if end && !x.send(b) {
			x.handOver(b, 0)
		}
		x.mu.Unlock()
		x.down.Consumed(b, len(p))
		return
	}
	if x.up == nil { // it waits for a connection
		x.early = append(x.early, p...)
		x.mu.Unlock()
		return
	}
	sent, err := x.up.Write(b, p, end)
	x.unsaid += len(p) - sent
	x.mu.Unlock()
	x.down.Consumed(b, sent)
	if err != nil {
		(*serverSide)(x).Closed(b, err)
	}
}

// Trailer implements h2.Receiver. Fields that were not announced end with us, as net/http has it;
// a request that announces some is the handler's.
func (c *clientSide) Trailer(b *h2.Batch, fields []h2.Field) {
	x := (*passage)(c)
	x.mu.Lock()
	next := x.handedTo()
	x.mu.Unlock()
	if next != nil {
		next.Trailer(b, fields)
		return
	}
	c.Data(b, nil, true)
}

// Sent implements h2.Receiver: n bytes of the answer have gone out.
func (c *clientSide) Sent(b *h2.Batch, n int) {
	x := (*passage)(c)
	x.mu.Lock()
	if next := x.handedTo(); next != nil {
		x.mu.Unlock()
		next.Sent(b, n)
		return
	}
	if x.over {
		if x.last > 0 {
			if x.last -= n; x.last == 0 && !x.gotAll {
				x.down.Reset(b, http2.ErrCodeNo)
			}
		}
		x.mu.Unlock()
		return
	}
	x.owed -= n
	x.up.Consumed(b, n)
	x.settle(b)
	x.mu.Unlock()
}

// Closed implements h2.Receiver: the client has given up, or is gone.
func (c *clientSide) Closed(b *h2.Batch, err error) {
	x := (*passage)(c)
	x.mu.Lock()
	if next := x.handedTo(); next != nil {
		x.mu.Unlock()
		next.Closed(b, err)
		return
	}
	if x.over {
		x.mu.Unlock()
		return
	}
	if x.up != nil {
		x.up.Reset(b, http2.ErrCodeCancel)
	}
	if !x.ended || x.owed > 0 {
		x.p.count.cancelled.Add(1)
	}
	x.finish(b)
	x.mu.Unlock()
}

// handedTo is who has the client's stream since the passage gave it up. It needs the lock.
func (x *passage) handedTo() h2.Receiver {
	if !x.handed {
		return nil
	}
	if next := x.down.Receiver(); next != h2.Receiver((*clientSide)(x)) {
		return next
	}
	return nil
}
