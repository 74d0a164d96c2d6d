package tpm

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// Key is a key in a TPM, and its certificate chain. It implements [signer.Key].
type Key struct {
	place    place
	timeout  time.Duration
	public   crypto.PublicKey
	schemes  []scheme
	chain    [][]byte
	warnings []string

	owner    *owner
	queue    chan request
	quit     chan struct{} // closed by Close
	done     chan struct{} // closed by the owner when it has gone
	once     sync.Once
	life     context.Context // of what the owner does; ends a little after quit
	end      context.CancelCauseFunc
	reopened atomic.Uint64
}

var _ signer.Key = (*Key)(nil)

// request is what the owner is asked to do.
type request struct {
	ctx   context.Context // of whoever waits
	limit time.Duration   // from when the owner begins
	run   func(context.Context) ([]byte, error)
	reply chan<- result // has room for one
}

type result struct {
	bytes []byte
	err   error
}

// Open finds the key, loads it, and tries which signature schemes work. It fails with a
// *[Error]. It takes up to six times the Timeout, besides what the password takes.
func Open(ctx context.Context, o Options) (*Key, error) {
	at, err := o.settle()
	if err != nil {
		return nil, err
	}
	h := home{place: at}
	if at.file != "" {
		if h.blob, err = readBlob(at); err != nil {
			return nil, err
		}
	}
	return open(ctx, o, h, nil)
}

// open is Open for options that are settled. A password that is known already is not asked for.
func open(ctx context.Context, o Options, h home, password []byte) (*Key, error) {
	k := &Key{place: h.place, timeout: o.Timeout,
		queue: make(chan request, o.Queue), quit: make(chan struct{}), done: make(chan struct{})}
	k.owner = &owner{key: k, home: h, o: o, handed: password}
	if password == nil {
		var err error // asked before the clock runs: a human may type it
		if k.owner.handed, err = k.owner.ask(ctx); err != nil {
			return nil, err
		}
	}
	k.life, k.end = context.WithCancelCause(context.Background())
	go k.owner.run()
	ctx, cancel := context.WithTimeout(ctx, openTimeouts*o.Timeout)
	defer cancel()
	if _, err := k.do(ctx, openTimeouts*o.Timeout, k.owner.begin); err != nil {
		_ = k.Close()
		return nil, err
	}
	return k, nil
}

// do has the owner run a function, and waits until it did, ctx ends or the key is closed. What
// the function changes may be read when it has returned without error.
//
// The owner has the limit to itself: were it the waiting that counted, a command would be cut
// short, and the key loaded again, because of a long queue.
func (k *Key) do(ctx context.Context, limit time.Duration, run func(context.Context) ([]byte, error)) ([]byte, error) {
	select {
	case <-k.quit:
		return nil, k.fail(ErrClosed, "", "")
	default:
	}
	reply := make(chan result, 1)
	select {
	case k.queue <- request{ctx, limit, run, reply}:
	default:
		return nil, k.fail(ErrBusy, fmt.Sprintf("%d signatures wait already", cap(k.queue)), "keep connections open: each needs one")
	}
	select {
	case r := <-reply:
		return r.bytes, r.err
	case <-ctx.Done():
		return nil, k.late(context.Cause(ctx))
	case <-k.done:
	}
	select {
	case r := <-reply:
		return r.bytes, r.err
	default:
		return nil, k.fail(ErrClosed, "", "")
	}
}

func (k *Key) fail(err error, detail, cure string) error { return k.place.fail(err, detail, cure) }

// late is the error of a request whose time is up.
func (k *Key) late(cause error) error {
	switch {
	case errors.Is(cause, ErrClosed):
		return k.fail(ErrClosed, "", "")
	case errors.Is(cause, context.Canceled):
		return k.fail(fmt.Errorf("%w: %w", ErrTimeout, cause), "", "")
	}
	return k.fail(timeoutError{}, "", "if it goes on, restart the machine: the TPM hangs")
}

// Public returns the public key.
func (k *Key) Public() crypto.PublicKey { return k.public }

// Sign has the TPM sign a digest; see [crypto.Signer]. It fails with a *[Error], at the latest
// when Options.Timeout is over.
func (k *Key) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	s, err := pick(k.schemes, digest, opts)
	if err != nil {
		return nil, k.fail(fmt.Errorf("%w: %w", ErrUnsupported, err), "", "")
	}
	digest = append([]byte(nil), digest...) // the owner may still read it when we have given up
	ctx, cancel := context.WithTimeout(context.Background(), k.timeout)
	defer cancel()
	return k.do(ctx, k.timeout, func(ctx context.Context) ([]byte, error) {
		return k.owner.sign(ctx, s, digest)
	})
}

// CertificateChain returns the chain that Options gave, DER, leaf first.
func (k *Key) CertificateChain() [][]byte { return append([][]byte(nil), k.chain...) }

// SupportedSignatureAlgorithms are those that worked when the key was opened.
func (k *Key) SupportedSignatureAlgorithms() []tls.SignatureScheme {
	out := make([]tls.SignatureScheme, len(k.schemes))
	for i, s := range k.schemes {
		out[i] = s.id
	}
	return out
}

// Warnings returns what works and still should not be so, one line each, with the cure.
func (k *Key) Warnings() []string { return append([]string(nil), k.warnings...) }

// Stats are a Key's counters.
type Stats struct {
	Reopened uint64 // how often the key was loaded again
	Queued   int    // requests that wait now
}

// Stats returns the counters as they are now.
func (k *Key) Stats() Stats { return Stats{Reopened: k.reopened.Load(), Queued: len(k.queue)} }

// Location is what --key calls this key: "tpm:handle=0x81000100" or "tpm:/path/key.pem".
func (k *Key) Location() string { return k.place.String() }

// Close flushes the key out of the TPM and ends its owner. Requests that wait fail; the one
// under way may take another second. A TPM that hangs holds it up for three.
func (k *Key) Close() error {
	k.once.Do(func() {
		close(k.quit)
		defer k.end(nil)
		timer := time.AfterFunc(closing, func() { k.end(ErrClosed) })
		defer timer.Stop()
		<-k.done
	})
	<-k.done
	return nil
}

// String tells the kind of key and where it is.
func (k *Key) String() string {
	kind := signer.Kind(k.public) + " key"
	return kind + " in " + k.place.String()
}

// Format writes String whatever the verb.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }
