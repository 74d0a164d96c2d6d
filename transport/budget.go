package transport

import (
	"context"
	"sync"
	"time"
)

// A budget bounds signatures, not dials: a server that answers each request
// with 401 and a closed connection, and resumes no session, would otherwise
// make as many signatures as there are requests.
const (
	budgetSize  = 32
	budgetEvery = time.Second / 16
)

type budget struct {
	mu     sync.Mutex
	tokens int
	filled time.Time
}

// take pays for one signature. It may go below zero: what was signed is signed.
func (b *budget) take(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	b.tokens--
}

func (b *budget) refill(now time.Time) {
	if b.filled.IsZero() {
		b.tokens, b.filled = budgetSize, now
	}
	n := int(now.Sub(b.filled) / budgetEvery)
	b.filled = b.filled.Add(time.Duration(n) * budgetEvery)
	b.tokens = min(b.tokens+n, budgetSize)
}

// wait blocks while the budget is spent, until ctx ends.
func (b *budget) wait(ctx context.Context) error {
	for {
		b.mu.Lock()
		b.refill(time.Now())
		var d time.Duration
		if b.tokens <= 0 {
			d = time.Duration(1-b.tokens) * budgetEvery
		}
		b.mu.Unlock()
		if d == 0 {
			return nil
		}
		if err := sleep(ctx, d); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
