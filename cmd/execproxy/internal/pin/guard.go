package pin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

const (
	// hold is the longest that a try keeps others waiting if nobody says what came of it.
	hold = 30 * time.Second
	// patience is the longest wait for others: they may be asking their user.
	patience = 3 * time.Minute
	// lookAgain is between two looks at a lock that is held. A blocking flock(2) cannot be
	// taken back when ctx ends.
	lookAgain = 10 * time.Millisecond
)

// A guard is the right to try, of one process at a time. Several tries of one Source share
// it, as their homes log in once for all.
type guard struct {
	mu    sync.Mutex
	lock  *flock.Flock // nil once it is over
	users map[*user]struct{}
}

type user struct{ forget func() }

// acquire waits until nobody else holds the lock file. waiting, if not nil, is told once that
// it does wait.
func acquire(ctx context.Context, path string, waiting func()) (*guard, error) {
	for {
		g, err := tryLock(path)
		if g != nil || err != nil {
			return g, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lookAgain):
		}
	}
}

// tryLock takes the lock file, or returns nil where somebody else holds it.
func tryLock(path string) (*guard, error) {
	f := flock.New(path, flock.SetFlag(os.O_RDWR|os.O_CREATE|nonblock|noFollow), flock.SetPermissions(0o600))
	if ok, err := f.TryLock(); !ok || err != nil {
		return nil, err
	}
	// Between our opening and our locking its holder has removed it, maybe: then the next to
	// come holds another, and ours means nothing.
	if mine, err := f.Stat(); err == nil {
		if now, err := os.Lstat(path); err == nil && os.SameFile(mine, now) {
			return &guard{lock: f, users: map[*user]struct{}{}}, nil
		}
	}
	return nil, f.Unlock()
}

// enter counts one more who uses the guard; it fails if the guard is over.
func (g *guard) enter() (*user, bool) {
	if g == nil {
		return nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lock == nil {
		return nil, false
	}
	u := &user{}
	g.users[u] = struct{}{}
	return u, true
}

// until makes u leave when ctx ends, or after a while.
func (g *guard) until(ctx context.Context, u *user) {
	if g == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hold)
	stop := context.AfterFunc(ctx, func() { g.leave(u) })
	g.mu.Lock()
	u.forget = func() { stop(); cancel() }
	over := g.lock == nil
	g.mu.Unlock()
	if over {
		u.forget()
	}
}

// leave ends the use of one; the last lets go of the lock.
func (g *guard) leave(u *user) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.users[u]; !ok {
		return
	}
	delete(g.users, u)
	if u.forget != nil {
		u.forget()
	}
	if len(g.users) == 0 {
		g.unlock()
	}
}

// end lets go of the lock, whoever still uses it.
func (g *guard) end() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for u := range g.users {
		if u.forget != nil {
			u.forget()
		}
	}
	clear(g.users)
	g.unlock()
}

func (g *guard) unlock() {
	if g.lock == nil {
		return
	}
	// Removed first and let go of afterwards, so that the file does not stay behind.
	if runtime.GOOS != "windows" { // where what is open cannot be removed
		_ = os.Remove(g.lock.Path())
	}
	_ = g.lock.Unlock()
	g.lock = nil
}

// takeGuard takes the right to try what comes from s's place, among all processes of this user.
// Without a place for state, or with one that cannot be written, there is none: keys must
// work on a full disk, too.
func (s *Source) takeGuard(ctx context.Context) (*guard, *user, error) {
	if s.store.dir == "" || s.spec.Kind == Prompt {
		return nil, nil, nil
	}
	s.mu.Lock()
	g := s.guard
	s.mu.Unlock()
	if u, ok := g.enter(); ok {
		return g, u, nil
	}
	g, err := s.acquire(ctx, s.store.marker()+".lock")
	if g == nil || err != nil {
		return nil, nil, err
	}
	u, _ := g.enter()
	s.mu.Lock()
	s.guard = g
	s.mu.Unlock()
	return g, u, nil
}

// acquire is the function of that name with s's words: no guard and no error if there can be none.
func (s *Source) acquire(ctx context.Context, path string) (*guard, error) {
	err := s.store.ready()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		var g *guard
		if g, err = acquire(ctx, path, s.waiting); err == nil {
			return g, nil
		}
		if cause := ctx.Err(); cause != nil && errors.Is(err, cause) {
			return nil, s.fail(stopped(ctx), "another process is trying it (lock file "+path+")", "end that one, or try again")
		}
	}
	s.log.Warn("PIN is tried without keeping other processes from it", "dir", filepath.Dir(path), "err", err)
	return nil, nil
}
