package tpm

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/execproxy/execproxy/signer"
)

// owner is the one that speaks to the TPM for a Key. All but run and ask belong to its goroutine.
type owner struct {
	key  *Key
	home home
	o    Options

	begun  bool    // the key was opened once
	loaded *loaded // nil while the TPM is away
	left   *line   // given up while a command was under way
	handed []byte  // the password to load with next; nil: ask for it
	proved bool    // the TPM has taken the password

	refused [sha256.Size]byte // salted; of the last password that the TPM did not take
	salt    [16]byte          // zero: there is none

	pause time.Duration // grows while the TPM is away
	until time.Time     // when it is looked for again
	why   error         // what is said until then
}

const (
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
)

func (w *owner) run() {
	k := w.key
	defer close(k.done)
	for {
		select {
		case <-k.quit:
			w.drop()
			clear(w.handed)
			return
		default:
		}
		select {
		case <-k.quit:
		case r := <-k.queue:
			if r.ctx.Err() == nil { // someone still waits
				b, err := w.serve(r)
				r.reply <- result{b, err}
			}
		}
	}
}

func (w *owner) serve(r request) (b []byte, err error) {
	ctx, cancel := context.WithTimeout(w.key.life, r.limit)
	defer cancel()
	defer func() {
		// go-tpm trusts what a TPM answers. It must not end the process.
		if p := recover(); p != nil {
			w.o.Logger.Error("TPM key: panic", "key", w.home.String(), "panic", fmt.Sprint(p))
			if l := w.loaded; l != nil { // not flushed: that might panic, too
				w.loaded = nil
				clear(l.password)
				w.leave(l.line)
			}
			b, err = nil, w.home.fail(ErrLost, "the TPM's answer makes no sense", "")
			w.hold(err)
		}
	}()
	return r.run(ctx)
}

// begin opens the key for the first time.
func (w *owner) begin(ctx context.Context) ([]byte, error) {
	l, err := w.get(ctx)
	if err != nil {
		return nil, err
	}
	k := w.key
	if k.public, err = usable(w.home.place, l.area); err != nil {
		return nil, err
	}
	if k.chain, err = chainOf(w.home.place, w.o.Chain, k.public); err != nil {
		return nil, err
	}
	if k.schemes, k.warnings, err = l.selfTest(w.home.place, k.public); err != nil {
		err, _ = w.explain(l, err)
		return nil, err
	}
	if w.home.blob != nil && w.home.blob.warned != "" {
		k.warnings = append(k.warnings, w.home.blob.warned)
	}
	w.begun = true
	w.accept(l)
	w.home.public = l.key.Name
	return nil, nil
}

// sign signs, if need be after it has opened the key again.
func (w *owner) sign(ctx context.Context, s scheme, digest []byte) ([]byte, error) {
	for again := true; ; again = false {
		l, err := w.get(ctx)
		if err != nil {
			return nil, err
		}
		sig, err := l.sign(s, digest)
		if err == nil {
			err = s.verify(w.key.public, digest, sig)
		}
		if err == nil {
			w.pause = 0
			w.accept(l)
			return sig, nil
		}
		err, lost := w.explain(l, err)
		// A password that was not yet taken might be counted twice.
		if !lost || !again || l.session != nil && !w.proved {
			w.hold(err)
			return nil, err
		}
		w.o.Logger.Warn("TPM key lost, opening it again", "key", w.home.String(), "err", err)
	}
}

// accept notes that the TPM took the password.
func (w *owner) accept(l *loaded) {
	if w.proved {
		return
	}
	w.proved = true
	if a, ok := w.o.Password.(signer.Accepter); ok && l.session != nil {
		a.Accepted()
	}
}

// get returns the key as it is in the TPM, after loading it if need be.
func (w *owner) get(ctx context.Context) (*loaded, error) {
	now := time.Now()
	if now.Before(w.until) {
		return nil, w.why
	}
	if w.loaded != nil {
		w.loaded.line.ctx = ctx
		return w.loaded, nil
	}
	l, err := w.load(ctx)
	if err != nil {
		w.hold(err)
		return nil, err
	}
	w.loaded = l
	if w.begun {
		w.key.reopened.Add(1)
		w.o.Logger.Info("TPM key opened again", "key", w.home.String(), "took", time.Since(now))
	}
	return l, nil
}

func (w *owner) load(ctx context.Context) (l *loaded, err error) {
	if w.left.stuck() {
		return nil, w.home.fail(ErrTimeout, "it still has not answered", "restart the machine: the TPM hangs")
	}
	password := w.handed
	if w.handed = nil; password == nil {
		if password, err = w.ask(ctx); err != nil {
			return nil, err
		}
	}
	t, err := w.o.dial(w.o.Device)
	if err != nil {
		clear(password)
		if w.begun {
			err = w.home.fail(fmt.Errorf("%w: %w", ErrLost, err), "", "")
		}
		return nil, err
	}
	line := newLine(t)
	line.ctx = ctx
	w.proved = w.proved && password == nil
	defer func() {
		if l == nil { // or in a panic
			w.leave(line)
		}
	}()
	l, err = w.home.load(line, password)
	if err != nil {
		err, _ = w.explain(&loaded{line: line}, err)
		return nil, err
	}
	return l, nil
}

// ask gets the password, nil for none.
func (w *owner) ask(ctx context.Context) ([]byte, error) {
	b := w.home.blob
	switch {
	case b != nil && b.auth == authEmpty:
		return nil, nil
	case w.o.Password == nil && b != nil && b.auth == authNeeded:
		return nil, w.home.fail(ErrPassword, "none was given", "give the key's password, with --pin-source")
	case w.o.Password == nil:
		return nil, nil
	}
	password, err := w.o.Password.Secret(ctx)
	if err != nil {
		return nil, w.home.fail(fmt.Errorf("%w: %w", ErrPassword, err), "", "")
	}
	if len(password) == 0 {
		if b != nil && b.auth == authNeeded {
			return nil, w.home.fail(ErrPassword, "none was given", "give the key's password, with --pin-source")
		}
		return nil, nil
	}
	if w.salt != [16]byte{} && w.print(password) == w.refused {
		clear(password)
		return nil, w.home.fail(ErrPassword, "it is the one that was refused before, and is not tried again", "give the right one")
	}
	return password, nil
}

func (w *owner) print(password []byte) [sha256.Size]byte {
	return sha256.Sum256(append(w.salt[:], password...))
}

// explain says what an error of the TPM means, and gives up what it took with it. lost tells
// that to open the key again may help.
func (w *owner) explain(l *loaded, err error) (_ error, lost bool) {
	var known *Error
	h := &w.home
	switch {
	case errors.As(err, &known):
		return err, false
	case refused(err):
		return w.refuse(l, err), false
	case is(err, tpm2.TPMRCLockout):
		detail, cure := lockout(l.line)
		return h.fail(ErrLockout, detail, cure), false
	case l.line.ctx.Err() != nil:
		cause := context.Cause(l.line.ctx)
		w.drop() // nobody knows how far the TPM has come
		return w.key.late(cause), false
	case full(err):
		return h.fail(fmt.Errorf("%w: %w", ErrBusy, err), "", "other programs fill the TPM: use /dev/tpmrm0, or flush what they left with `tpm2_flushcontext --transient-object` and `--loaded-session`"), false
	case is(err, tpm2.TPMRCFailure):
		w.drop()
		return h.fail(fmt.Errorf("%w: %w", ErrLost, err), "", "restart the machine"), false
	case gone(err), errors.Is(err, errSignature), errors.Is(err, errSalt), code(err) == 0:
		w.drop()
		return h.fail(fmt.Errorf("%w: %w", ErrLost, plain(err)), "", ""), true
	}
	// A key that could once sign is not the same any more.
	w.drop()
	return h.fail(fmt.Errorf("%w: %w", ErrUnsupported, err), "", "make an EC P-256 key with `execproxy key create`"), w.begun
}

// refuse notes that the TPM took the password for wrong.
func (w *owner) refuse(l *loaded, err error) error {
	defer w.drop()
	if l.session == nil {
		if w.o.Password != nil { // it had none
			w.o.Password.Refused()
		}
		return w.home.fail(ErrPassword, "none was given", "give the key's password, with --pin-source")
	}
	w.proved = false
	if w.salt == [16]byte{} {
		_, _ = rand.Read(w.salt[:]) // never fails
	}
	w.refused = w.print(l.password)
	w.o.Password.Refused()
	detail := "" // not every key counts
	if is(err, tpm2.TPMRCAuthFail) {
		detail = triesLeft(l.line)
	}
	return w.home.fail(ErrPassword, detail, "give the right one: this one is not tried again")
}

// hold keeps the TPM from being asked for a while.
func (w *owner) hold(err error) {
	w.pause = min(max(2*w.pause, firstPause), lastPause)
	w.why, w.until = err, time.Now().Add(w.pause)
}

// drop gives up the key in the TPM, and the connection.
func (w *owner) drop() {
	if l := w.loaded; l != nil {
		w.loaded = nil
		l.end()
		w.leave(l.line)
	}
}

// leave closes a connection. One that still waits for the TPM is remembered: there shall not
// be more of them.
func (w *owner) leave(l *line) {
	if l.close(closing); l.stuck() {
		w.left = l
	}
}
