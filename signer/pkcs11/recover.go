package pkcs11

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// How long signatures fail at once after a reopening that failed.
const (
	firstHold = 100 * time.Millisecond
	lastHold  = 2 * time.Second
)

// sign makes a signature, and once more after a loss that a new process may mend.
func (k *Key) sign(ctx context.Context, m *wire.Sign) ([]byte, error) {
	var lost error // why the first try failed
	for {
		l, err := k.live(ctx)
		if err != nil {
			if lost != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, lost
			}
			return nil, err
		}
		sig, err := k.signWith(ctx, l, m)
		if err == nil {
			k.worked()
			return sig, nil
		}
		if k.life.Err() != nil {
			return nil, ErrClosed
		}
		var e *Error
		if errors.As(err, &e) && (e.lost || e.refused) {
			// The next one must not meet the same process.
			l.host.kill(err)
		}
		if !mendable(err) {
			return nil, err
		}
		if lost != nil {
			k.mu.Lock()
			if k.link == l && k.failed == nil { // of all whom this process failed, one counts
				k.delay(err)
			}
			k.mu.Unlock()
			return nil, err
		}
		lost = err
	}
}

// worked: after a signature, the next loss begins with the shortest delay.
func (k *Key) worked() {
	k.mu.Lock()
	if k.hold != 0 {
		k.hold, k.failed = 0, nil
	}
	k.mu.Unlock()
}

// delay puts the next reopening off. k.mu is held.
func (k *Key) delay(err error) {
	k.failed = err
	k.hold = min(max(2*k.hold, firstHold), lastHold)
	k.again = time.Now().Add(k.hold)
}

// live returns a link to the token: the one there is, or that of a reopening, which all who
// need it share.
func (k *Key) live(ctx context.Context) (*link, error) {
	k.mu.Lock()
	for {
		if k.closed {
			k.mu.Unlock()
			return nil, ErrClosed
		}
		if k.opening == nil {
			if k.link.host.dead() == nil {
				l := k.link
				k.mu.Unlock()
				return l, nil
			}
			if k.failed != nil && time.Now().Before(k.again) {
				err := k.failed
				k.mu.Unlock()
				return nil, err
			}
			k.opening = make(chan struct{})
			k.wg.Go(k.reopen)
		}
		opening := k.opening
		k.mu.Unlock()
		select {
		case <-opening:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, &Error{What: k.what(), Err: ErrLost, Detail: fmt.Sprintf("it is opened again, and that is not done within %v", k.o.Timeout)}
			}
			return nil, ctx.Err()
		}
		k.mu.Lock()
		if k.failed != nil && k.link.host.dead() != nil && !k.closed {
			err := k.failed
			k.mu.Unlock()
			return nil, err
		}
	}
}

// reopen opens the key again in a new process.
func (k *Key) reopen() {
	began := time.Now()
	ctx, cancel := context.WithTimeout(k.life, k.o.Timeout)
	defer cancel()
	k.mu.Lock()
	cause := k.link.host.dead()
	old := k.link
	k.mu.Unlock()
	k.o.Logger.Warn("token lost, opening it again", "key", k.Location(), "error", cause)
	<-old.host.done
	l, err := k.relink(ctx)
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = &Error{What: k.what(), Err: ErrLost, Detail: fmt.Sprintf("it cannot be opened again within %v", k.o.Timeout), lost: true,
			Cure: "look whether the token is there and reachable"}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.opening)
	k.opening = nil
	switch {
	case err != nil && k.closed:
	case err != nil:
		k.delay(err)
		k.o.Logger.Warn("token cannot be opened again", "key", k.Location(), "error", err, "after", time.Since(began), "retry", k.hold)
	case k.closed: // Close has not seen it
		l.host.kill(ErrClosed)
		<-l.host.done
	default:
		k.link, k.failed = l, nil
		k.reopened.Add(1)
		k.o.Logger.Info("token opened again", "key", k.Location(), "after", time.Since(began))
	}
}

// relink connects to the same token and uses the same key there.
func (k *Key) relink(ctx context.Context) (*link, error) {
	l, err := k.connect.connect(ctx, k.uri)
	if err != nil {
		return nil, err
	}
	if _, err = k.use(ctx, l, k.uri, k.ref.pkix); err != nil {
		if errors.Is(err, ErrMismatch) {
			err = &Error{What: k.what(), Err: ErrLost, Detail: "the token came back with another key of this name", Cure: "start anew to use that one"}
		}
		l.host.kill(err)
		<-l.host.done
		return nil, err
	}
	return l, nil
}
