package transport

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// How long a failure that costs a signature answers for the next requests. A refusal lasts
// until somebody does something about the certificate; a device may be back at any moment.
const (
	refusedHold, refusedMost = time.Second, 30 * time.Second
	keyHold, keyMost         = 100 * time.Millisecond, 2 * time.Second

	// worthTelling is how long a hold must last for a reader to notice it.
	worthTelling = 5 * time.Second
)

// A hold keeps requests from making the key sign when that was in vain a moment ago: a
// hardware key has better things to do, and a server may lock out who knocks too often. It
// belongs to one generation, so a rotation ends it.
type hold struct {
	mu    sync.Mutex
	err   *UpstreamError // nil: nothing is held
	delay time.Duration
	until time.Time
	probe bool // a dial is under way that was let through
}

// costly reports a failure that a hold is for.
func costly(err error) bool {
	return errors.Is(err, ErrCertificateRefused) || errors.Is(err, ErrKey)
}

// check returns the failure that is held. Once its time is over one dial may go through, and
// the next one only after another delay, or when note has learned how the first one ended.
func (h *hold) check(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		return nil
	}
	left := h.until.Sub(now)
	if left <= 0 {
		h.until, h.probe = now.Add(h.delay), true
		return nil
	}
	held := *h.err
	held.held, held.unsent = true, true
	if left >= worthTelling {
		held.Hint = joinHint(held.Hint, fmt.Sprintf("the server is not asked again before %s", h.until.UTC().Format("15:04:05Z")))
	}
	return &held
}

// note learns how a dial ended.
func (h *hold) note(err error, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var u *UpstreamError
	switch {
	case err == nil:
		h.err, h.probe = nil, false
	case !errors.As(err, &u) || u.held:
		// Our own doing: it says nothing about the key or the server.
	case u.Kind == ErrCertificateRefused:
		h.keep(u, refusedHold, refusedMost, now)
	case u.Kind == ErrKey:
		h.keep(u, keyHold, keyMost, now)
	case h.probe:
		h.until, h.probe = now, false // it did not get as far; the next one may
	}
}

func (h *hold) keep(u *UpstreamError, first, most time.Duration, now time.Time) {
	switch {
	case h.err == nil || h.err.Kind != u.Kind:
		h.delay = first
	case h.probe:
		h.delay = min(2*h.delay, most)
	default:
		return // it began before the others had failed, and is no news
	}
	h.err, h.until, h.probe = u, now.Add(h.delay), false
}

func joinHint(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
