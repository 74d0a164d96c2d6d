package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Waits between attempts to connect to a listener whose backlog is full.
const (
	minBusy = time.Millisecond
	maxBusy = 32 * time.Millisecond
)

// Dial connects to the Unix socket at path, and verifies that the process that listens there is of our own uid or
// root's; another's is a *[PeerError], and it gets not a byte.
//
// A listener whose backlog is full is alive, so Dial asks again until ctx ends. Other errors are the system's, wrapped:
// ECONNREFUSED says that the owner is dead, ENOENT that it has gone or never was.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	c, err := dialBusy(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("connecting to proxy: %w", err)
	}
	uid, err := PeerUID(c)
	switch {
	case err != nil && !uidKnown && errors.Is(err, errors.ErrUnsupported):
		return c, nil
	case err != nil:
		_ = c.Close()
		return nil, fmt.Errorf("connecting to proxy at %q: %w", path, err)
	case !allowed(uid):
		_ = c.Close()
		return nil, &PeerError{Path: path, UID: uid}
	}
	return c, nil
}

func dialBusy(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	var busy error // why it was asked again
	for wait := minBusy; ; wait = min(2*wait, maxBusy) {
		c, err := d.DialContext(ctx, "unix", path)
		if err != nil && busy != nil && ctx.Err() != nil {
			return nil, fmt.Errorf("%w, its owner does not accept: %w", busy, context.Cause(ctx))
		}
		if !isBusy(err) {
			return c, err
		}
		busy = err
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done(): // told by the next attempt
			timer.Stop()
		case <-timer.C:
		}
	}
}
