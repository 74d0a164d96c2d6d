package watch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errMismatch = errors.New("the files do not belong together")

// load reads two files that must hold the same, as a key and its certificate do.
func load(one, two string) func() (string, error) {
	return func() (string, error) {
		a, err := os.ReadFile(one)
		if err != nil {
			return "", err
		}
		b, err := os.ReadFile(two)
		if err == nil && string(a) != string(b) {
			err = errMismatch
		}
		if err != nil {
			return "", err
		}
		return string(a), nil
	}
}

type report struct {
	text string
	err  error
}

// watching watches two files and returns what is told of them.
func watching(t *testing.T, one, two string) <-chan report {
	t.Helper()
	o := Options[string]{Paths: []string{one, two}, Load: load(one, two), Equal: func(a, b string) bool { return a == b }}
	first, err := o.Load()
	must(t, err)
	reports := make(chan report, 100)
	o.First, o.Changed = first, func(s string, err error) { reports <- report{s, err} }
	w := newWatcher(o)
	ready := make(chan struct{})
	w.ready = func() { close(ready) }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.run(ctx) }()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return reports
}

// next waits for a report, well under the time after which Run looks without being told.
func next(t *testing.T, reports <-chan report) report {
	t.Helper()
	select {
	case r := <-reports:
		return r
	case <-time.After(tick / 2):
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

// writeBoth writes the two files one after the other.
func writeBoth(t *testing.T, dir, text string) (one, two string) {
	t.Helper()
	one, two = filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for _, path := range []string{one, two} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return one, two
}

func expect(t *testing.T, reports <-chan report, text string) {
	t.Helper()
	if r := next(t, reports); r.err != nil || r.text != text {
		t.Errorf("got %+v, want %s", r, text)
	}
}

func TestInPlace(t *testing.T) {
	dir := t.TempDir()
	one, two := writeBoth(t, dir, "first")
	reports := watching(t, one, two)
	for _, text := range []string{"second", "third"} {
		writeBoth(t, dir, text)
		expect(t, reports, text)
	}
	// The same text again is no change; the one after it is.
	writeBoth(t, dir, "third")
	writeBoth(t, dir, "fourth")
	expect(t, reports, "fourth")
}

// TestSwappedLink swaps the link in the middle, as kubelet does for a mounted secret.
func TestSwappedLink(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege")
	}
	mount := t.TempDir()
	version := func(text string) {
		dir := filepath.Join(mount, "..version-"+text)
		must(t, os.Mkdir(dir, 0o700))
		writeBoth(t, dir, text)
		must(t, os.Symlink(filepath.Base(dir), filepath.Join(mount, "..data_tmp")))
		must(t, os.Rename(filepath.Join(mount, "..data_tmp"), filepath.Join(mount, "..data")))
	}
	version("first")
	for _, file := range []string{"one", "two"} {
		must(t, os.Symlink(filepath.Join("..data", file), filepath.Join(mount, file)))
	}
	reports := watching(t, filepath.Join(mount, "one"), filepath.Join(mount, "two"))
	for _, text := range []string{"second", "third", "fourth"} {
		version(text)
		expect(t, reports, text)
	}
}

// TestDirectoryLink: a directory above the files is a link that is swapped.
func TestDirectoryLink(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege")
	}
	top, releases := t.TempDir(), t.TempDir()
	current := filepath.Join(top, "current")
	version := func(text string) {
		dir := filepath.Join(releases, text)
		must(t, os.MkdirAll(filepath.Join(dir, "tls"), 0o700))
		writeBoth(t, filepath.Join(dir, "tls"), text)
		must(t, os.Symlink(dir, current+".tmp"))
		must(t, os.Rename(current+".tmp", current))
	}
	version("first")
	reports := watching(t, filepath.Join(current, "tls", "one"), filepath.Join(current, "tls", "two"))
	for _, text := range []string{"second", "third"} {
		version(text)
		expect(t, reports, text)
	}
}

// TestDirectoryReplaced: the directory goes and comes back.
func TestDirectoryReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	must(t, os.Mkdir(dir, 0o700))
	one, two := writeBoth(t, dir, "first")
	reports := watching(t, one, two)
	must(t, os.RemoveAll(dir))
	if r := next(t, reports); !errors.Is(r.err, fs.ErrNotExist) || r.text != "" {
		t.Errorf("got %+v, want %v", r, fs.ErrNotExist)
	}
	must(t, os.Mkdir(dir, 0o700))
	writeBoth(t, dir, "second")
	expect(t, reports, "second")
}

// TestHalfWritten: what is bad for a moment is looked at again soon and not told; what stays
// bad is, once for each reason.
func TestHalfWritten(t *testing.T) {
	dir := t.TempDir()
	one, two := writeBoth(t, dir, "first")
	var reports []error
	w := newWatcher(Options[string]{Paths: []string{one, two}, First: "first", Load: load(one, two),
		Equal: func(a, b string) bool { return a == b }, Changed: func(_ string, err error) { reports = append(reports, err) }})
	must(t, os.WriteFile(one, []byte("another"), 0o600))
	if soon := w.look(); soon != quiet || len(reports) != 0 {
		t.Errorf("at once: looks again after %s, told %v", soon, reports)
	}
	for range 3 {
		w.badSince = w.badSince.Add(-grace)
		if later := w.look(); later != tick || len(reports) != 1 || !errors.Is(reports[0], errMismatch) {
			t.Errorf("after the grace: looks again after %s, told %v", later, reports)
		}
	}
	must(t, os.Remove(two))
	if w.look(); len(reports) != 2 || !errors.Is(reports[1], fs.ErrNotExist) {
		t.Errorf("bad for another reason: told %v", reports)
	}
	writeBoth(t, dir, "second")
	if w.look(); len(reports) != 3 || reports[2] != nil {
		t.Errorf("good again: told %v", reports)
	}
	must(t, os.WriteFile(one, []byte("another"), 0o600))
	if soon := w.look(); soon != quiet || len(reports) != 3 {
		t.Errorf("bad again: looks again after %s, told %v", soon, reports)
	}
}

// TestKnown: the failure that the caller has seen is not told again, another one is.
func TestKnown(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	read := load(one, two)
	_, known := read()
	var reports []error
	w := newWatcher(Options[string]{Paths: []string{one, two}, Known: known, Load: read,
		Equal: func(a, b string) bool { return a == b }, Changed: func(_ string, err error) { reports = append(reports, err) }})
	for range 2 {
		w.badSince = time.Now().Add(-grace)
		if w.look(); len(reports) != 0 {
			t.Errorf("told %v", reports)
		}
	}
	writeBoth(t, dir, "x")
	must(t, os.Remove(two))
	if w.look(); len(reports) != 1 {
		t.Errorf("told %v", reports)
	}
}

// TestDrop: of each value that was loaded one is told: Changed, or Drop.
func TestDrop(t *testing.T) {
	loaded, dropped, changed := 0, 0, 0
	w := newWatcher(Options[int]{Paths: []string{"x"}, Load: func() (int, error) { loaded++; return loaded / 3, nil },
		Equal: func(a, b int) bool { return a == b }, Changed: func(int, error) { changed++ }, Drop: func(int) { dropped++ }})
	for range 9 {
		w.look()
	}
	if changed != 3 || dropped != 6 {
		t.Errorf("%d changed, %d dropped, want 3 and 6", changed, dropped)
	}
}

// TestMissesNothing: what changed between the first load and Run is told.
func TestMissesNothing(t *testing.T) {
	one, two := writeBoth(t, t.TempDir(), "second")
	ctx, cancel := context.WithTimeout(t.Context(), tick/2)
	defer cancel()
	got := ""
	must(t, Run(ctx, Options[string]{Paths: []string{one, two}, First: "first", Load: load(one, two),
		Equal: func(a, b string) bool { return a == b }, Changed: func(s string, err error) { got = s; cancel() }}))
	if got != "second" {
		t.Errorf("got %q", got)
	}
}

// TestRelativePath: a daemon changes its directory; the files stay where they are.
func TestRelativePath(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	w := newWatcher(Options[int]{Paths: []string{"one"}})
	here, err := filepath.Abs("one")
	must(t, err)
	if w.Paths[0] != here {
		t.Errorf("watches %s, want %s", w.Paths[0], here)
	}
}

func TestNothingToWatch(t *testing.T) {
	if err := Run(t.Context(), Options[int]{}); err == nil {
		t.Error("watches no files")
	}
}

// TestEndlessLinks: links that lead to each other end.
func TestEndlessLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege")
	}
	dir := t.TempDir()
	must(t, os.Symlink("b", filepath.Join(dir, "a")))
	must(t, os.Symlink("a", filepath.Join(dir, "b")))
	all := map[string]bool{}
	directories(filepath.Join(dir, "a"), all)
	if !all[dir] {
		t.Errorf("got %v, want %s", all, dir)
	}
}
