package sigv4

import (
	"net/http"
	"sync"
	"time"
)

// ReplayCache remembers the signatures that a Verifier accepted until they expire.
//
// It looks at methods that change something, and lets GET, HEAD and OPTIONS pass: a
// signature tells the time in seconds, so two equal requests of an honest client within a
// second have the same signature. A client that sends the same change twice within a second
// has the second one refused.
//
// It is of this process alone: replicas behind one address need a common one.
type ReplayCache struct {
	max   int
	mu    sync.Mutex
	until map[string]time.Time
	swept time.Time
}

// NewReplayCache returns a cache for at most max signatures (100 to 150 bytes each). When
// it is full of signatures that are still valid, new ones are refused: size it for the
// changes of two windows.
func NewReplayCache(max int) *ReplayCache {
	return &ReplayCache{max: max, until: map[string]time.Time{}}
}

func (c *ReplayCache) add(key string, until, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if end, ok := c.until[key]; ok && !now.After(end) {
		return refuse(ErrReplayed, "sign it again to send it again")
	}
	// A full cache is not swept for every request: that would make refusing dear.
	if since := now.Sub(c.swept); since >= time.Minute || len(c.until) >= c.max && since >= time.Second {
		for k, end := range c.until {
			if now.After(end) {
				delete(c.until, k)
			}
		}
		c.swept = now
	}
	if len(c.until) >= c.max {
		return refuse(ErrReplayFull, "slow down")
	}
	c.until[key] = until
	return nil
}

func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}
