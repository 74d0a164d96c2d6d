package enroll

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// step bounds a sleep: timers stand still while a machine sleeps, the end of a
	// certificate does not.
	step = 30 * time.Second
	// renewAt is the part of a certificate's life after which it is renewed, give or take
	// renewSpread: machines that were enrolled together come one after the other.
	renewAt, renewSpread = 2.0 / 3, 0.03
	// firstRetry and longestRetry bound the time between failures. It is never more than
	// a retryPart of what is left, and never less than shortestRetry.
	firstRetry, longestRetry = time.Minute, time.Hour
	shortestRetry            = time.Second
	retryPart, deniedPart    = 20, 10
	// calm is the least time between two renewals that go well.
	calm = 10 * time.Second
)

var (
	errReplaced = errors.New("the certificate was replaced meanwhile")
	errEnded    = errors.New("the certificate ended meanwhile")
)

// A Renewer renews one certificate again and again, over the transport that it authenticates.
// Its fields must not change once Run was called.
type Renewer struct {
	Client *Client
	// Current returns the certificate in use, or nil. It is asked often. When it returns
	// another than before, everything is reckoned anew.
	Current func() *x509.Certificate
	// Key returns the key that the next certificate is for: the same or a new one. done is
	// called once, when the attempt is over and, if it went well, after Store.
	Key func(ctx context.Context) (key crypto.Signer, done func(), err error)
	// Store keeps the new chain, DER, leaf first, and brings it into use.
	Store func(ctx context.Context, chain [][]byte) error

	SignerName  string        // "": by the subject, see DefaultSigner
	Expiration  time.Duration // asked for; 0: the life of the current certificate
	RenewBefore time.Duration // the end; 0: at two thirds of the life
	Logger      *slog.Logger  // nil: silence

	clock func() time.Time // the wall's; tests set it

	once   sync.Once
	jitter float64 // -1…1, for the life of the process

	mu    sync.Mutex
	state State

	// Of the goroutine of Run.
	last    *x509.Certificate // that Current returned
	stored  *x509.Certificate // the renewed one, until Current returns it or another
	failed  int               // in a row
	retry   time.Time         // not before
	pauseTo time.Time         // not before, though all is well
}

// State is what a Renewer is at. Times are wall clock; the zero time is none.
type State struct {
	NotAfter  time.Time // of the certificate
	Expired   bool      // it has ended: renewal is no longer possible
	Next      time.Time // the next renewal or retry; zero while one is under way
	Pending   string    // the name of the request that is waited for; "" without one
	Progress  Progress  // of Pending
	Since     time.Time // Pending is there
	LastError string    // of the last attempt, with the cure; "" when it goes well
	Renewed   uint64    // by this process
}

// State returns what the Renewer is at.
func (r *Renewer) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

func (r *Renewer) set(change func(*State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
}

func (r *Renewer) init() {
	r.once.Do(func() {
		if r.clock == nil {
			r.clock = time.Now
		}
		if r.Logger == nil {
			r.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
		}
		if r.jitter == 0 {
			r.jitter = 2*rand.Float64() - 1
		}
	})
}

// now is the wall clock alone: the monotonic one misses what the machine slept.
func (r *Renewer) now() time.Time { return r.clock().Round(0) }

// Run renews until ctx ends, and returns nil then. Failures are logged, are in State, and
// are tried again.
func (r *Renewer) Run(ctx context.Context) error {
	if r.Client == nil || r.Current == nil || r.Key == nil || r.Store == nil {
		return errors.New("renewer: Client, Current, Key and Store are needed")
	}
	r.init()
	for ctx.Err() == nil {
		cert, now := r.current(), r.now()
		if cert == nil {
			r.set(func(s *State) {
				s.Next, s.LastError = time.Time{}, "there is no certificate yet: run execproxy key enroll"
			})
			_ = pause(ctx, step)
			continue
		}
		next := later(r.due(cert), r.retry, r.pauseTo)
		switch {
		case now.After(cert.NotAfter):
			r.expire(cert)
			_ = pause(ctx, step)
		case now.Before(next):
			r.set(func(s *State) { s.Next = next })
			_ = pause(ctx, min(next.Sub(now), step))
		default:
			r.set(func(s *State) { s.Next = time.Time{} })
			r.conclude(ctx, cert, r.attempt(ctx, cert))
		}
	}
	return nil
}

// current is the certificate to renew. One that was just stored counts, even where Current
// is slow to return it.
func (r *Renewer) current() *x509.Certificate {
	cert := r.Current()
	if changed := !same(cert, r.last); changed {
		if !same(cert, r.stored) {
			r.failed, r.retry, r.pauseTo = 0, time.Time{}, time.Time{}
			r.set(func(s *State) { s.LastError = "" })
		}
		r.last, r.stored = cert, nil
		r.set(func(s *State) { s.Expired = false })
	}
	if r.stored != nil {
		cert = r.stored
	}
	r.set(func(s *State) {
		if s.NotAfter = (time.Time{}); cert != nil {
			s.NotAfter = cert.NotAfter
		}
	})
	return cert
}

// due is when cert is to be renewed. It does not change while the process lives.
func (r *Renewer) due(cert *x509.Certificate) time.Time {
	life := cert.NotAfter.Sub(cert.NotBefore)
	due := cert.NotBefore.Add(part(life, renewAt+renewSpread*r.jitter))
	if r.RenewBefore > 0 {
		// Spread to the earlier side only: the user said how much must be left.
		due = cert.NotAfter.Add(-r.RenewBefore - part(r.RenewBefore, renewSpread*(1+r.jitter)))
		// A signer may give less than was asked for: no certificate is renewed in the
		// first half of its life, or renewing would never end.
		due = later(due, cert.NotBefore.Add(life/2))
	}
	return due
}

// expire says once that there is nothing left to renew with.
func (r *Renewer) expire(cert *x509.Certificate) {
	text := "the certificate expired at " + cert.NotAfter.UTC().Format(time.RFC3339) + ": run execproxy key enroll"
	if r.State().Expired {
		return
	}
	r.set(func(s *State) { s.Expired, s.Next, s.LastError = true, time.Time{}, text })
	r.Logger.Error("certificate cannot be renewed", "error", text)
}

// attempt renews cert once, however long the approval takes.
func (r *Renewer) attempt(ctx context.Context, cert *x509.Certificate) error {
	guarded, stop := r.guard(ctx, cert)
	defer stop()
	defer r.set(func(s *State) { s.Pending, s.Progress, s.Since = "", Progress{}, time.Time{} })

	began := r.now()
	key, done, err := r.Key(guarded)
	if err != nil {
		return cause(guarded, err)
	}
	if done != nil {
		defer done()
	}
	order, err := Renewal(key, cert, r.SignerName)
	if err != nil {
		return err
	}
	if r.Expiration != 0 {
		order.Expiration = max(r.Expiration, MinExpiration)
	}
	order.stands = cert.NotAfter.Sub(r.now()) / deniedPart
	submitted, err := r.Client.Submit(guarded, order)
	if err != nil {
		return cause(guarded, err)
	}
	since := submitted.Created
	if now := r.now(); since.IsZero() || since.After(now) {
		since = now
	}
	r.set(func(s *State) { s.LastError = "" })
	r.Logger.Info("certificate is being renewed", "request", submitted.Name, "signer", submitted.SignerName, "adopted", submitted.Adopted)
	text, err := r.Client.Wait(guarded, submitted, func(p Progress) {
		r.set(func(s *State) { s.Pending, s.Since, s.Progress = p.Name, since, p })
		if p.State == Pending && p.Trouble == nil {
			r.Logger.Info("certificate signing request waits for approval", "request", p.Name, "approve", ApproveCommand(p.Name))
		}
	})
	var deleted *DeletedError
	if errors.As(err, &deleted) && r.now().Sub(began) >= firstRetry && guarded.Err() == nil {
		// It grew old unnoticed; the next one goes in at once.
		r.Logger.Info("certificate signing request is made again", "reason", err)
		return nil
	}
	if err != nil {
		return cause(guarded, err)
	}
	var chain [][]byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		chain = append(chain, block.Bytes)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return err
	}
	if err := r.Store(ctx, chain); err != nil {
		return fmt.Errorf("storing the renewed certificate: %w", err)
	}
	r.stored = leaf
	now := r.now()
	r.pauseTo = now.Add(max(calm, min(leaf.NotAfter.Sub(now)/2, time.Minute)))
	r.set(func(s *State) { s.Renewed++ })
	r.Logger.Info("certificate renewed", "request", submitted.Name, "notAfter", leaf.NotAfter)
	return nil
}

// guard ends an attempt that has lost its reason: the certificate ended, so that the API
// would refuse us, or was replaced by somebody else.
func (r *Renewer) guard(ctx context.Context, cert *x509.Certificate) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watcher sync.WaitGroup
	before := r.last
	watcher.Go(func() {
		for ctx.Err() == nil {
			left := cert.NotAfter.Sub(r.now())
			switch {
			case left < 0:
				cancel(errEnded)
			case !same(r.Current(), before):
				cancel(errReplaced)
			}
			_ = pause(ctx, min(left+time.Second, step))
		}
	})
	return ctx, func() { cancel(nil); watcher.Wait() }
}

// cause is why ctx ended, if it did, else err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// conclude takes note of how an attempt went.
func (r *Renewer) conclude(ctx context.Context, cert *x509.Certificate, err error) {
	switch {
	case ctx.Err() != nil, errors.Is(err, errEnded), errors.Is(err, errReplaced):
		return // Run sees to it
	case err == nil:
		r.failed, r.retry = 0, time.Time{}
		r.set(func(s *State) { s.LastError = "" })
		return
	}
	r.failed++
	now := r.now()
	left := cert.NotAfter.Sub(now)
	rest := min(firstRetry<<min(r.failed-1, 16), longestRetry)
	rest = min(spread(rest, 0.1), left/retryPart)
	var denied *DeniedError
	if errors.As(err, &denied) {
		rest = max(rest, left/deniedPart)
	}
	r.retry = now.Add(max(rest, shortestRetry))
	text := oneLine(err.Error(), 1000)
	r.set(func(s *State) { s.LastError, s.Next = text, r.retry })
	r.Logger.Warn("certificate was not renewed", "error", text, "retry", r.retry, "notAfter", cert.NotAfter)
}

func same(a, b *x509.Certificate) bool {
	return a == b || a != nil && b != nil && a.Equal(b)
}

func later(t time.Time, more ...time.Time) time.Time {
	for _, u := range more {
		if u.After(t) {
			t = u
		}
	}
	return t
}

func part(d time.Duration, f float64) time.Duration { return time.Duration(float64(d) * f) }
