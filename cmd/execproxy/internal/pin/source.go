package pin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/execproxy/execproxy/signer"
)

// Options are what a Source is given of the world.
type Options struct {
	// What is asked for, and by whom: "PIN of token execproxy (pkcs11)". It stands in the
	// prompt and in errors, and what was refused is remembered by it: name a token the same each time.
	What string

	// Getenv reads the environment; only CREDENTIALS_DIRECTORY is asked for. May be nil.
	Getenv func(string) string

	// State is the user's directory for state. What was refused is remembered below it, for
	// all processes. "" remembers in this process only.
	State string

	// Value is the value itself: a URI's pin-value, or what the plugin handed over. New copies
	// it. It stands for whatever the Spec names but a file, which is read again.
	Value []byte `json:"-"`

	// Terminal says that the user may be asked on the terminal: the client is interactive.
	Terminal bool

	// Detached says that this is not the process that the user started: nobody is asked, no
	// program is run, no descriptor is ours.
	Detached bool

	// Logger is told where a refusal cannot be remembered. nil: nobody is.
	Logger *slog.Logger
}

func (o Options) String() string             { return "options for the " + clean(o.What) }
func (o Options) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, o.String()) }
func (o Options) LogValue() slog.Value       { return slog.StringValue(o.String()) }

// A Source gives a PIN or password, for a home to try. It implements [signer.Secret] and
// [signer.Accepter].
//
// The context of Secret is that of the whole try: until Refused, Accepted or Release is
// called, or until that context ends, other processes that want the same wait. A home that
// never calls any of these keeps them waiting for 30 s at most.
type Source struct {
	spec     Spec
	what     string
	getenv   func(string) string
	terminal bool
	detached bool
	given    bool // by Options.Value: there is never another
	passed   bool // the descriptor was ours from the start
	store    store
	log      *slog.Logger

	// Of tests.
	waiting  func() // told that a lock is waited for
	patience time.Duration
	between  func() // told that a file was read, and will be looked at again

	turn chan struct{} // one at a time reads or asks

	mu       sync.Mutex
	kept     *reading // what cannot be had twice, or would have to be asked for again
	last     *tried
	accepted bool // the home has taken what is kept
	wrong    map[[sha256.Size]byte]time.Time
	at       time.Time // of the last refusal
	key      []byte    // of the MAC by which wrong ones are known in memory
	guard    *guard
}

var (
	_ signer.Secret   = (*Source)(nil)
	_ signer.Accepter = (*Source)(nil)
)

// reading is a value as it was read, and the state of its file, if it has one.
type reading struct {
	value []byte
	file  *identity
}

// tried is what Secret returned last, without the value.
type tried struct {
	mac    [sha256.Size]byte
	file   *identity
	digest func() (*digest, error)
	forget func()
}

// New returns a Source. It reads nothing and asks nobody.
func New(spec Spec, opt Options) *Source {
	s := &Source{
		spec: spec, what: clean(opt.What), getenv: opt.Getenv, terminal: opt.Terminal && !opt.Detached, detached: opt.Detached,
		store: newStore(opt.State, spec, opt.What), log: opt.Logger, turn: make(chan struct{}, 1),
		wrong: map[[sha256.Size]byte]time.Time{}, key: make([]byte, sha256.Size),
	}
	_, _ = rand.Read(s.key) // never fails
	if s.getenv == nil {
		s.getenv = func(string) string { return "" }
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.what == "" {
		s.what = "PIN"
	}
	if opt.Value != nil && spec.Kind != File {
		s.given = true
		s.kept = &reading{value: append([]byte(nil), opt.Value...)}
	}
	if spec.Kind == Descriptor && !s.detached && !s.given {
		s.passed = passed(spec.Place)
	}
	return s
}

// Secret returns the value; the caller wipes it. It asks the user where there is nobody else
// to ask, and keeps what cannot be had twice. It fails with an *[Error].
func (s *Source) Secret(ctx context.Context) ([]byte, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	g, u, err := s.takeGuard(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.obtain(ctx)
	if err != nil {
		g.leave(u)
		return nil, err
	}
	s.mu.Lock()
	s.forgetLast()
	s.last = s.remember(r)
	s.mu.Unlock()
	g.until(ctx, u)
	return r.value, nil
}

// Ready asks for what can only be asked for, so that no deadline of a home runs while the
// user types, and keeps it for Secret. It does nothing for what can be read at any time.
func (s *Source) Ready(ctx context.Context) error {
	if !s.keeps() {
		return nil
	}
	value, _, err := s.Handover(ctx)
	Wipe(value)
	return err
}

// Handover returns the value for a daemon, which cannot ask or read it: it goes there by a
// pipe, and the daemon's Source gets it as [Options].Value. It is false for a file, which the
// daemon reads itself. The caller wipes the value. It is not tried here.
func (s *Source) Handover(ctx context.Context) (value []byte, ok bool, err error) {
	if s.spec.Kind == File {
		return nil, false, nil
	}
	if err := s.enter(ctx); err != nil {
		return nil, false, err
	}
	defer s.leave()
	g, u, err := s.takeGuard(ctx)
	if err != nil {
		return nil, false, err
	}
	defer g.leave(u)
	r, err := s.obtain(ctx)
	return r.value, err == nil, err
}

// enter makes concurrent calls come one after the other: the user is asked one question at a time.
func (s *Source) enter(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return s.fail(stopped(ctx), "somebody waits for it already", "")
	}
}

func (s *Source) leave() { <-s.turn }

// obtain returns a value that was not refused. It is the caller's.
func (s *Source) obtain(ctx context.Context) (reading, error) {
	s.mu.Lock()
	kept, again := s.kept.clone(), !s.at.IsZero()
	s.mu.Unlock()
	var r reading
	var err error
	switch {
	case kept != nil:
		r = *kept
		if problem, cure := check(r.value); problem != "" {
			err = s.fail(ErrMalformed, problem, cure)
		}
	case s.given, s.spec.Kind == Value:
		err = s.gone(again)
	case s.spec.Kind == File:
		r, err = s.readFile(s.spec.Place)
	case s.spec.Kind == Credential:
		r, err = s.readCredential()
	case s.detached:
		err = s.nobody()
	case s.spec.Kind == Descriptor:
		if again {
			err = s.gone(again)
			break
		}
		r, err = s.readDescriptor(ctx)
	case s.spec.Kind == Askpass:
		r, err = s.askProgram(ctx)
	case s.spec.Kind == Prompt:
		r, err = s.askUser(ctx, again)
	default:
		err = s.fail(ErrMissing, "there is no such kind of source", "name another")
	}
	if err == nil {
		err = s.checkRefused(r)
	}
	if err != nil {
		Wipe(r.value)
		return reading{}, err
	}
	if kept == nil && s.keeps() {
		s.mu.Lock()
		s.kept, s.accepted = r.clone(), false
		s.mu.Unlock()
	}
	return r, nil
}

// keeps tells what cannot be had twice. Files and credentials can, and may have changed.
func (s *Source) keeps() bool {
	return s.spec.Kind == Descriptor || s.spec.Kind == Askpass || s.spec.Kind == Prompt
}

func (r *reading) clone() *reading {
	if r == nil {
		return nil
	}
	return &reading{value: append([]byte(nil), r.value...), file: r.file}
}

// Human tells whether a user has typed it for this very try. Only then may it be the last
// that a token allows.
func (s *Source) Human() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spec.Kind == Prompt && !s.accepted
}

// String tells what is asked for and where it comes from.
func (s *Source) String() string { return s.what + " from " + s.where() }

// GoString is String.
func (s *Source) GoString() string { return s.String() }

// Format writes String whatever the verb: none may show the value.
func (s *Source) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is String.
func (s *Source) LogValue() slog.Value { return slog.StringValue(s.String()) }

func (s *Source) where() string {
	switch s.spec.Kind {
	case File:
		return "file " + clean(s.spec.Place)
	case Descriptor:
		return "descriptor " + clean(s.spec.Place)
	case Credential:
		return "credential " + clean(s.spec.Place)
	case Askpass:
		return "askpass program " + clean(s.spec.Place)
	case Prompt:
		return "the prompt"
	}
	return "the given value"
}

// clean makes one line of text that comes from outside: a token's label must not write to
// the terminal what it likes.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func (s *Source) fail(err error, detail, cure string) error {
	return &Error{What: s.what, Where: s.where(), Err: err, Detail: clean(detail), Cure: clean(cure)}
}

// ways are the other places that can be named, and how.
const ways = "name another source, with pin-source in the key's URI, EXECPROXY_PIN_SOURCE or --pin-source: " +
	"file:PATH, fd:N, credential:NAME or askpass:PROGRAM"

// nobody says that the user cannot be asked.
func (s *Source) nobody() error {
	if s.spec.Kind == Prompt {
		return &Error{What: s.what, Err: ErrNoTerminal, Cure: "run it from one, or " + ways}
	}
	return s.fail(ErrMissing, "it is only for the process that the user started", "start again, or name a file")
}

// gone says that the one value there was is no more.
func (s *Source) gone(refused bool) error {
	if refused {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.refused(s.at)
	}
	return s.fail(ErrMissing, "none was given", ways)
}
