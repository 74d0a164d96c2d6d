package imagecredentials

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// A grant is a user name and a password, and how long they may be used.
type grant struct {
	auth  AuthConfig
	fresh time.Time // got anew afterwards
	valid time.Time // not used afterwards; zero: no longer than fresh
}

// upstreamTimeout bounds one attempt to get a grant. kubelet kills its plugin after
// 60 s.
const upstreamTimeout = 40 * time.Second

// retryStale is how long an answer is good that is given because a new one could
// not be got.
const retryStale = time.Minute

// maxGrants bounds what is kept: tokens of service accounts are each their own.
const maxGrants = 4096

// A cache asks once for each name, however many want to know at the same time.
type cache struct {
	clock  func() time.Time
	flight singleflight.Group

	mu   sync.Mutex
	kept map[string]grant
}

// get returns the grant of a name, and until when it counts: the one at hand while
// it is fresh, else what fetch gets. If that fails without refusing, one that is
// still valid is used on.
func (c *cache) get(ctx context.Context, name string, fetch func(context.Context) (grant, error), refused func(error) bool) (AuthConfig, time.Time, error) {
	if g, ok := c.at(name); ok && c.clock().Before(g.fresh) {
		return g.auth, g.fresh, nil
	}
	result := c.flight.DoChan(name, func() (any, error) {
		if g, ok := c.at(name); ok && c.clock().Before(g.fresh) {
			return g, nil
		}
		// Whoever came first may go; the others still want to know.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), upstreamTimeout)
		defer cancel()
		g, err := fetch(ctx)
		if err == nil {
			c.keep(name, g)
			return g, nil
		}
		old, ok := c.at(name)
		if until := c.clock().Add(retryStale); ok && !refused(err) && old.valid.After(until) {
			old.fresh = until
			c.keep(name, old)
			return old, nil
		}
		c.forget(name)
		return grant{}, err
	})
	select {
	case r := <-result:
		if r.Err != nil {
			return AuthConfig{}, time.Time{}, r.Err
		}
		g := r.Val.(grant)
		return g.auth, g.fresh, nil
	case <-ctx.Done():
		return AuthConfig{}, time.Time{}, ctx.Err()
	}
}

func (c *cache) at(name string) (grant, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, ok := c.kept[name]
	return g, ok
}

func (c *cache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.kept, name)
}

// keep makes room first, of what nobody can use any more, then of anything.
func (c *cache) keep(name string, g grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = map[string]grant{}
	}
	if _, ok := c.kept[name]; !ok && len(c.kept) >= maxGrants {
		now := c.clock()
		for n, old := range c.kept {
			if !now.Before(old.fresh) && !now.Before(old.valid) {
				delete(c.kept, n)
			}
		}
		for n := range c.kept {
			if len(c.kept) < maxGrants {
				break
			}
			delete(c.kept, n)
		}
	}
	c.kept[name] = g
}
