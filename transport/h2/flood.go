package h2

import (
	"time"

	"golang.org/x/net/http2"
)

// A bucket bounds what a peer may do that is allowed, and of no use.
type bucket struct {
	size   int
	every  time.Duration // one more
	tokens int
	filled time.Time
}

func (b *bucket) take() bool {
	if b.filled.IsZero() {
		b.tokens, b.filled = b.size, time.Now()
	}
	if b.tokens == 0 {
		n := int(time.Since(b.filled) / b.every)
		b.filled = b.filled.Add(time.Duration(n) * b.every)
		b.tokens = min(n, b.size)
		if b.tokens == 0 {
			return false
		}
	}
	b.tokens--
	return true
}

// spend takes one from what the peer may do, or ends the connection.
func (c *Conn) spend(b *bucket, kind string) error {
	if b.take() {
		return nil
	}
	return c.flood(kind)
}

func (c *Conn) flood(kind string) error {
	c.o.Flood(kind)
	return &ConnError{Code: http2.ErrCodeEnhanceYourCalm, Reason: "too much of " + kind}
}
