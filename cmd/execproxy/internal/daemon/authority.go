package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How the file of the API server's authority is followed: it is read when its
// directory has changed, a moment later, and now and then in any
// case, for file systems that tell nothing.
const (
	authorityQuiet = 100 * time.Millisecond
	authorityTick  = 30 * time.Second
)

// watchAuthority follows the authority's file and returns what ends it. Until
// the file is whole and differs, nothing changes.
func (f *front) watchAuthority() (stop func()) {
	path := f.config.CertificateAuthority
	last, _ := os.ReadFile(path) // it was read without error just now
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		// The directory, not the file: a file that is replaced is another one.
		err = notify.Add(filepath.Dir(path))
	}
	var (
		events <-chan fsnotify.Event
		errs   <-chan error
	)
	if err != nil {
		f.d.log.Warn("a changed certificate authority is noticed late", "file", path, "error", err)
	}
	if notify != nil {
		events, errs = notify.Events, notify.Errors
	}
	look := func() {
		now, err := os.ReadFile(path)
		if err != nil || bytes.Equal(now, last) {
			return // a file that is being exchanged is looked at again
		}
		last = now
		f.d.log.Info("certificate authority changed", "file", path)
		_ = f.rotate() // it has logged why
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if notify != nil {
			defer notify.Close()
		}
		timer := time.NewTimer(authorityTick)
		defer timer.Stop()
		soon := false // a busy directory must not put the look off for ever
		for {
			select {
			case <-quit:
				return
			case <-events:
			case <-errs: // an overflow: something has changed
			case <-timer.C:
				soon = false
				timer.Reset(authorityTick)
				look()
				continue
			}
			if !soon {
				soon = true
				timer.Reset(authorityQuiet)
			}
		}
	}()
	return func() { close(quit); <-done }
}
