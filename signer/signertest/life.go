package signertest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	signers = 16 // at once
	rounds  = 8  // each
	pause   = 10 * time.Millisecond
)

// parallel: signatures that are made at once are each of their own message, and with their
// own scheme.
func parallel(w world) error {
	return w.with(func(k Key) error {
		named, public := k.SupportedSignatureAlgorithms(), k.Public()
		if len(named) == 0 {
			return errors.New("no scheme to sign with")
		}
		return within(w.patience, func() error {
			errs := make([]error, signers)
			var wg sync.WaitGroup
			for i := range signers {
				wg.Go(func() {
					for n := range rounds {
						errs[i] = signAndVerify(k, public, named[(i+n)%len(named)], fmt.Sprintf("signer %d, message %d", i, n))
						if errs[i] != nil {
							return
						}
					}
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				return fmt.Errorf("with %d signers at once: %w", signers, err)
			}
			return nil
		})
	})
}

// closing: a closed key signs nothing, says so, and may be closed again.
func closing(w world) error {
	k := w.open()
	public, named := k.Public(), k.SupportedSignatureAlgorithms()
	if len(named) == 0 {
		return errors.Join(errors.New("no scheme to sign with"), k.Close())
	}
	if err := w.signs(k, named[0], "before Close"); err != nil {
		return errors.Join(err, k.Close())
	}
	for _, nth := range []string{"first", "second"} {
		if err := within(w.patience, k.Close); err != nil {
			return fmt.Errorf("the %s Close: %w", nth, err)
		}
		for _, s := range named {
			if err := refusesToSign(w, k, public, s); err != nil {
				return fmt.Errorf("after the %s Close: %w", nth, err)
			}
		}
	}
	if !same(public, k.Public()) {
		return errors.New("after Close: Public returns another key")
	}
	return nil
}

// refusesToSign: an error it must be, of one line, and no panic.
func refusesToSign(w world, k Key, public any, s tls.SignatureScheme) error {
	err := within(w.patience, func() error { return signAndVerify(k, public, s, "message") })
	return decentFailure(err)
}

// decentFailure returns what is wrong with err as the failure of a Sign that had to fail.
func decentFailure(err error) error {
	var bad *badSignatureError
	var panicked *panicError
	switch {
	case err == nil:
		return errors.New("it still signs: want an error")
	case errors.As(err, &bad), errors.As(err, &panicked), errors.Is(err, errSlow):
		return fmt.Errorf("want an error of Sign: %w", err)
	case strings.ContainsAny(err.Error(), "\r\n"):
		return fmt.Errorf("want an error of one line: %q", err)
	}
	return nil
}

// load signs without end, on some goroutines.
type load struct {
	stop    chan struct{}
	done    chan struct{}
	began   chan struct{} // closed once each goroutine has signed
	failed  atomic.Bool   // goroutines may end with an error from now on
	closed  atomic.Bool   // a Sign that begins from now on must fail
	persist bool          // goroutines go on after an error

	mu  sync.Mutex
	bad []error
}

func startLoad(k Key, persist bool) *load {
	named, public := k.SupportedSignatureAlgorithms(), k.Public()
	l := &load{stop: make(chan struct{}), done: make(chan struct{}), began: make(chan struct{}), persist: persist}
	var wg sync.WaitGroup
	var first atomic.Int64
	for i := range signers {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				closed := l.closed.Load()
				err := signAndVerify(k, public, named[i%len(named)], fmt.Sprintf("signer %d, message %d", i, n))
				on := l.judge(closed, err)
				if n == 0 {
					if first.Add(1) == signers {
						close(l.began)
					}
					select { // none gets ahead of those that have not signed yet
					case <-l.began:
					case <-l.stop:
					}
				}
				if !on {
					return
				}
			}
		})
	}
	go func() { wg.Wait(); close(l.done) }()
	return l
}

// judge reports whether to go on.
func (l *load) judge(closed bool, err error) bool {
	if err == nil && !closed {
		return true
	}
	wrong := decentFailure(err)
	if wrong == nil && !l.failed.Load() {
		wrong = err // nothing was taken away yet
	}
	if wrong != nil {
		l.mu.Lock()
		l.bad = append(l.bad, wrong)
		l.mu.Unlock()
		return false
	}
	if l.persist {
		select {
		case <-l.stop:
		case <-time.After(pause):
		}
	}
	return l.persist
}

// begin waits until every goroutine has signed.
func (l *load) begin(patience time.Duration) error {
	err := within(patience, func() error { <-l.began; return nil })
	if err != nil {
		return fmt.Errorf("with %d signers at once: %w", signers, err)
	}
	return nil
}

// end waits for the goroutines, and returns what was wrong.
func (l *load) end(patience time.Duration) error {
	err := within(patience, func() error { <-l.done; return nil })
	if err != nil {
		err = fmt.Errorf("signers hang: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(append(l.bad, err)...)
}

// closingUnderLoad: signatures under way end, well or with an error.
func closingUnderLoad(w world) error {
	k := w.open()
	if len(k.SupportedSignatureAlgorithms()) == 0 {
		return errors.Join(errors.New("no scheme to sign with"), k.Close())
	}
	l := startLoad(k, false)
	err := l.begin(w.patience)
	if err != nil {
		close(l.stop)
	}
	l.failed.Store(true)
	cerr := within(w.patience, k.Close)
	l.closed.Store(true)
	if cerr != nil {
		err = errors.Join(err, fmt.Errorf("on Close: %w", cerr))
	}
	return errors.Join(err, l.end(w.patience))
}

// reopening: the key is the same one, and signs.
func reopening(w world) error {
	first := w.open()
	public := first.Public()
	if err := within(w.patience, first.Close); err != nil {
		return fmt.Errorf("on Close: %w", err)
	}
	for range 2 {
		k := w.reopen()
		err := func() error {
			if !same(public, k.Public()) {
				return errors.New("opened again, it has another public key")
			}
			for _, s := range k.SupportedSignatureAlgorithms() {
				if err := w.signs(k, s, "opened again"); err != nil {
					return fmt.Errorf("opened again: %w", err)
				}
			}
			return nil
		}()
		if cerr := within(w.patience, k.Close); cerr != nil {
			err = errors.Join(err, fmt.Errorf("on Close: %w", cerr))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lossAndReturn: without its home a key fails in time; with it, it signs again by itself.
func lossAndReturn(w world) error {
	return w.with(func(k Key) error {
		named, public := k.SupportedSignatureAlgorithms(), k.Public()
		if len(named) == 0 {
			return errors.New("no scheme to sign with")
		}
		try := func() error {
			return within(w.patience, func() error { return signAndVerify(k, public, named[0], "message") })
		}
		for range 2 { // what came back once can be lost again
			l := startLoad(k, true)
			err := l.begin(w.patience)
			l.failed.Store(true)
			if err == nil {
				err = w.loseOnce(try)
			}
			close(l.stop)
			if err := errors.Join(err, l.end(w.patience)); err != nil {
				return err
			}
			if err := try(); err != nil {
				return fmt.Errorf("some time after the return: %w", err)
			}
		}
		if !same(public, k.Public()) {
			return errors.New("after the return it has another public key")
		}
		return nil
	})
}

func (w world) loseOnce(try func() error) error {
	w.lose()
	err := w.until(func() bool { return try() != nil })
	for range 3 {
		if err == nil {
			if err = decentFailure(try()); err != nil {
				err = fmt.Errorf("while the home is lost: %w", err)
			}
		}
	}
	w.restore()
	if err != nil {
		return err
	}
	var last error
	if w.until(func() bool { last = try(); return last == nil }) != nil {
		return fmt.Errorf("it does not sign again %v after the return: %w", w.patience, last)
	}
	return nil
}

// until waits for a state of the key, which tells nobody when it changes.
func (w world) until(reached func() bool) error {
	deadline := time.Now().Add(w.patience)
	for !reached() {
		if time.Now().After(deadline) {
			return fmt.Errorf("it still signs %v after the loss", w.patience)
		}
		time.Sleep(pause)
	}
	return nil
}
