package watch

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How files are watched. Events come from the directories; a slow look covers what sends
// none.
const (
	quiet = 100 * time.Millisecond // after the last event
	noisy = time.Second            // at most, where events do not end
	grace = 2 * time.Second        // for what is half written, before it is called bad
	tick  = 30 * time.Second       // without events
	blind = 5 * time.Second        // the same, where there is no notification service
)

// Options say what is watched, and who is told. T is what the files hold.
type Options[T any] struct {
	// Paths are the files. Those that are relative are so to the directory of now.
	Paths []string

	// First is what was loaded before; the zero value where nothing was. Known is the
	// failure that the caller knows of already, if that was a failure: it is not told again.
	First T
	Known error

	// Load reads the files. It is also called where nothing has changed.
	Load func() (T, error)

	// Equal compares what was loaded with the last that was good, at first First.
	Equal func(loaded, last T) bool

	// Changed gets what the files hold now where that is another, or the zero value and the
	// reason why they hold nothing good: the old is to be kept then. Each reason comes once.
	// What is bad for less than two seconds (files are written one after the other) is not
	// told. Changed is called on the goroutine of Run; nothing is watched while it runs.
	Changed func(T, error)

	// Drop gets what was loaded and is not told, being equal to the last. nil where there is
	// nothing to give up.
	Drop func(T)
}

// Run watches until ctx ends, and returns nil then. What changed since First was loaded is
// told, too, also if that happened before Run was called.
func Run[T any](ctx context.Context, o Options[T]) error {
	if len(o.Paths) == 0 {
		return errors.New("no files to watch")
	}
	return newWatcher(o).run(ctx)
}

type watcher[T any] struct {
	Options[T]
	last      T // the last good one
	lastError string
	badSince  time.Time // zero while good
	ready     func()    // for tests: all is watched
}

func newWatcher[T any](o Options[T]) *watcher[T] {
	w := &watcher[T]{Options: o, last: o.First}
	w.Paths = make([]string, 0, len(o.Paths))
	for _, p := range o.Paths {
		if abs, err := filepath.Abs(p); err == nil {
			p = abs
		}
		w.Paths = append(w.Paths, p)
	}
	if o.Known != nil {
		w.lastError = o.Known.Error()
	}
	return w
}

func (w *watcher[T]) run(ctx context.Context) error {
	events, errs, every := (<-chan fsnotify.Event)(nil), (<-chan error)(nil), blind
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		defer notify.Close()
		events, errs, every = notify.Events, notify.Errors, tick
		follow(notify, w.Paths)
	}
	// What happened before the directories were watched.
	again := time.NewTimer(w.look())
	defer again.Stop()
	if w.ready != nil {
		w.ready()
	}
	var first time.Time // of the events since the last look
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if e.Op == fsnotify.Chmod {
				continue
			}
			if first.IsZero() {
				first = time.Now()
			}
			again.Reset(max(0, min(quiet, noisy-time.Since(first))))
			continue
		case <-errs: // an overflow, mostly: something happened
			again.Reset(quiet)
			continue
		case <-again.C:
		}
		first = time.Time{}
		if err == nil {
			follow(notify, w.Paths)
		}
		again.Reset(min(every, w.look()))
	}
}

// look loads and tells what is new. It returns how soon to look again.
func (w *watcher[T]) look() time.Duration {
	loaded, err := w.Load()
	if err == nil {
		w.badSince, w.lastError = time.Time{}, ""
		if !w.Equal(loaded, w.last) {
			w.last = loaded
			w.Changed(loaded, nil)
		} else if w.Drop != nil {
			w.Drop(loaded)
		}
		return tick
	}
	now := time.Now()
	if w.badSince.IsZero() {
		w.badSince = now
	}
	if now.Sub(w.badSince) < grace {
		return quiet
	}
	if text := err.Error(); text != w.lastError {
		w.lastError = text
		var none T
		w.Changed(none, err)
	}
	return tick
}
