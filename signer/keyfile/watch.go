package keyfile

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How files are watched. Events come from the directories, as editors and Kubernetes
// replace files rather than write them; a slow look covers what sends no events.
const (
	quiet = 100 * time.Millisecond // after the last event
	noisy = time.Second            // at most, where events do not end
	grace = 2 * time.Second        // for a pair that is half written, before it is called bad
	tick  = 30 * time.Second       // without events
	blind = 5 * time.Second        // the same, where there is no notification service
)

// Watch calls changed when the files hold another pair than they did when Watch was called;
// use [Key.Watch] where a Key was loaded before. It blocks until ctx ends, and returns nil
// then.
//
// changed gets the new Key, or a nil Key and the reason why the files have none now: the
// old Key is to be kept then. Each reason comes once. A pair that is bad for less than two
// seconds (key and certificate are written one after the other) is not reported. changed is
// called from this goroutine; nothing is watched while it runs.
func Watch(ctx context.Context, keyPath, certPath string, changed func(*Key, error)) error {
	if certPath == "" {
		certPath = keyPath
	}
	keyPath, certPath = absolute(keyPath), absolute(certPath)
	k, err := Load(keyPath, certPath)
	w := watch{keyPath: keyPath, certPath: certPath, current: k, changed: changed}
	if err != nil {
		w.lastError = err.Error()
		changed(nil, err)
	}
	return w.run(ctx)
}

// Watch calls changed when the files hold another pair than k, also if that happened before
// it was called. All else is as with the function [Watch]. It returns [ErrNoFiles] for a Key
// from [Parse].
func (k *Key) Watch(ctx context.Context, changed func(*Key, error)) error {
	if k.keyPath == "" {
		return ErrNoFiles
	}
	w := watch{keyPath: k.keyPath, certPath: k.certPath, current: k, changed: changed}
	return w.run(ctx)
}

type watch struct {
	keyPath, certPath string
	changed           func(*Key, error)

	current   *Key // the last good one; nil before
	lastError string
	badSince  time.Time // zero while good
	ready     func()    // for tests: all is watched
}

func (w *watch) run(ctx context.Context) error {
	events, errs, every := (<-chan fsnotify.Event)(nil), (<-chan error)(nil), blind
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		defer notify.Close()
		events, errs, every = notify.Events, notify.Errors, tick
		w.follow(notify)
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
		if notify != nil {
			w.follow(notify)
		}
		again.Reset(min(every, w.look()))
	}
}

// look loads the pair and reports what is new. It returns how soon to look again.
func (w *watch) look() time.Duration {
	k, err := Load(w.keyPath, w.certPath)
	if err == nil {
		w.badSince, w.lastError = time.Time{}, ""
		if !k.Equal(w.current) {
			w.current = k
			w.changed(k, nil)
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
		w.changed(nil, err)
	}
	return tick
}

// follow watches the directories of both files and of every symbolic link on the way to
// them: Kubernetes swaps a link in the middle.
func (w *watch) follow(notify *fsnotify.Watcher) {
	want := map[string]bool{}
	directories(w.keyPath, want)
	directories(w.certPath, want)
	for _, dir := range notify.WatchList() {
		if !want[dir] {
			_ = notify.Remove(dir) // it may be gone already
		}
	}
	for dir := range want {
		// A directory that is not there yet shows up in the nearest one that is. What
		// cannot be watched at all is looked at all the same.
		for notify.Add(dir) != nil && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
		}
	}
}

const maxLinks = 40 // as in Linux

// directories adds to all the directory of each link on the way to path, and path's own.
func directories(path string, all map[string]bool) {
	path, err := filepath.Abs(path)
	if err != nil {
		return
	}
	root := filepath.VolumeName(path) + string(filepath.Separator)
	at, rest := root, strings.TrimPrefix(path, root)
	for links := 0; rest != "" && links < maxLinks; {
		name, more, _ := strings.Cut(rest, string(filepath.Separator))
		next := filepath.Join(at, name)
		target, err := os.Readlink(next)
		if err != nil {
			if more == "" {
				all[at] = true
			}
			at, rest = next, more
			continue
		}
		all[at] = true
		links++
		if !filepath.IsAbs(target) {
			target = filepath.Join(at, target)
		}
		path = filepath.Join(target, more)
		root = filepath.VolumeName(path) + string(filepath.Separator)
		at, rest = root, strings.TrimPrefix(path, root)
	}
}
