package keyfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

type report struct {
	name string // of the new leaf
	err  error
}

// watching watches the pair and returns what it reports.
func watching(t *testing.T, keyPath, certPath string) <-chan report {
	t.Helper()
	k, err := Load(keyPath, certPath)
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan report, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- k.Watch(ctx, func(k *Key, err error) {
			r := report{err: err}
			if k != nil {
				r.name = k.Leaf().Subject.CommonName
			}
			reports <- r
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return reports
}

// patience is well under the time after which Watch looks without being told.
const patience = 15 * time.Second

// next waits for a report.
func next(t *testing.T, reports <-chan report) report {
	t.Helper()
	select {
	case r := <-reports:
		return r
	case <-time.After(patience):
		t.Fatal("no report")
		return report{}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchInPlace(t *testing.T) {
	dir := t.TempDir()
	keyPath, certPath := writePair(t, dir, "one")
	reports := watching(t, keyPath, certPath)
	// Key and certificate one after the other: between the writes they do not match. A
	// pair of which nothing is reported must not keep the next from being seen.
	for _, name := range []string{"two", "three"} {
		writePair(t, dir, name)
		if r := next(t, reports); r.err != nil || r.name != name {
			t.Errorf("got %+v, want %s", r, name)
		}
	}
	// The same text again is no change; the one after it is.
	old, err := os.ReadFile(certPath)
	must(t, err)
	write(t, certPath, old)
	writePair(t, dir, "four")
	if r := next(t, reports); r.err != nil || r.name != "four" {
		t.Errorf("got %+v, want four", r)
	}
}

func TestWatchRenamed(t *testing.T) {
	dir := t.TempDir()
	keyPath, certPath := writePair(t, dir, "one")
	reports := watching(t, keyPath, certPath)
	for _, name := range []string{"two", "three"} {
		key, cert := pair(t, name)
		must(t, os.Rename(write(t, keyPath+".tmp", key), keyPath))
		must(t, os.Rename(write(t, certPath+".tmp", cert), certPath))
		if r := next(t, reports); r.err != nil || r.name != name {
			t.Errorf("got %+v, want %s", r, name)
		}
	}
}

// TestWatchBad: a bad pair is told once, and the next good one is seen.
func TestWatchBad(t *testing.T) {
	dir := t.TempDir()
	keyPath, certPath := writePair(t, dir, "one")
	reports := watching(t, keyPath, certPath)
	key, _ := pair(t, "another")
	write(t, keyPath, key)
	if r := next(t, reports); !errors.Is(r.err, ErrMismatch) || r.name != "" {
		t.Errorf("got %+v, want %v", r, ErrMismatch)
	}
	write(t, keyPath, key)
	must(t, os.Remove(certPath))
	if r := next(t, reports); !errors.Is(r.err, ErrMissing) {
		t.Errorf("got %+v, want %v, and nothing twice", r, ErrMissing)
	}
	writePair(t, dir, "two")
	if r := next(t, reports); r.err != nil || r.name != "two" {
		t.Errorf("got %+v, want two", r)
	}
}

// TestWatchMissesNothing: a pair that changed between Load and Watch is reported.
func TestWatchMissesNothing(t *testing.T) {
	dir := t.TempDir()
	keyPath, certPath := writePair(t, dir, "one")
	k, err := Load(keyPath, certPath)
	must(t, err)
	writePair(t, dir, "two")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = k.Watch(ctx, func(k *Key, err error) {
		if err != nil || k.Leaf().Subject.CommonName != "two" {
			t.Errorf("got %v, %v", k, err)
		}
		cancel()
	})
	if err != nil || ctx.Err() == nil {
		t.Errorf("Watch: %v", err)
	}
}

func TestWatchFunction(t *testing.T) {
	dir := t.TempDir()
	keyPath, certPath := filepath.Join(dir, "tls.key"), filepath.Join(dir, "tls.crt")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []string
	err := Watch(ctx, keyPath, certPath, func(k *Key, err error) {
		if errors.Is(err, ErrMissing) {
			got = append(got, "missing")
			writePair(t, dir, "one")
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		got = append(got, k.Leaf().Subject.CommonName)
		cancel()
	})
	if err != nil || len(got) != 2 || got[0] != "missing" || got[1] != "one" {
		t.Errorf("got %q, %v", got, err)
	}
	key, cert := pair(t, "memory")
	k, err := Parse(key, cert)
	must(t, err)
	if err := k.Watch(t.Context(), nil); !errors.Is(err, ErrNoFiles) {
		t.Errorf("a Key from memory: %v", err)
	}
}

// TestRelativePath: a daemon changes its directory; the files stay where they are.
func TestRelativePath(t *testing.T) {
	dir := t.TempDir()
	writePair(t, dir, "one")
	t.Chdir(dir)
	k, err := Load("tls.key", "tls.crt")
	must(t, err)
	t.Chdir(t.TempDir())
	writePair(t, dir, "two")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	must(t, k.Watch(ctx, func(k *Key, err error) {
		if err != nil {
			t.Error(err)
		}
		cancel()
	}))
}
