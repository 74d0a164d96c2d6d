package pin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestThreeAtOnce: three clients that start at the same moment with a wrong PIN file try it
// once. The others wait for what comes of it.
func TestThreeAtOnce(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pin"), "1234\n")
	state := filepath.Join(dir, "state")
	three := []*player{
		start(t, "home", "file:"+path, state), start(t, "home", "file:"+path, state), start(t, "home", "file:"+path, state),
	}
	for _, p := range three {
		p.tell("secret")
	}
	trying := -1
	for i, p := range three {
		switch line := p.next(); {
		case strings.HasPrefix(line, `try "1234"`):
			if trying >= 0 {
				t.Fatal("two of them try it")
			}
			trying = i
		case line != "waiting":
			t.Fatalf("process said %q", line)
		}
	}
	if trying < 0 {
		t.Fatal("none of them tries it")
	}
	three[trying].tell("refused")
	three[trying].expect("told")
	for i, p := range three {
		if i != trying {
			p.expect("refused: " + what + ": file " + path + " was refused at ")
		}
	}
	// Nor does any try it again, or a fourth that comes later.
	for _, p := range append(three, start(t, "home", "file:"+path, state)) {
		p.tell("secret")
		p.expect("refused: ")
	}
	// Until there is another.
	replace(t, path, "right\n")
	three[0].tell("secret")
	three[0].expect(`try "right"`)
	three[1].tell("secret")
	three[1].expect("waiting")
	three[0].tell("accepted")
	three[0].expect("told")
	three[1].expect(`try "right"`)
	// One that is killed holds nothing up.
	three[2].tell("secret")
	three[2].expect("waiting")
	three[1].end()
	three[2].expect(`try "right"`)
	three[2].tell("accepted")
	three[2].expect("told")
	if left := tree(t, state); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestOneHolds: a lock file that is removed while others open it has one holder at a time.
func TestOneHolds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var holders, held atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 2000 {
				g, err := tryLock(path)
				if err != nil {
					t.Error(err)
					return
				}
				if g == nil {
					continue
				}
				held.Add(1)
				if holders.Add(1) != 1 {
					t.Error("two hold it at once")
				}
				runtime.Gosched()
				holders.Add(-1)
				g.end()
			}
		})
	}
	all.Wait()
	if held.Load() == 0 {
		t.Error("nobody ever held it")
	}
}

// held tells whether another Source of the same place would have to wait.
func held(t *testing.T, spec Spec, opt Options) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := New(spec, opt)
	defer other.Close()
	other.waiting = cancel
	_, err := other.Secret(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err != nil && (!errors.Is(err, ErrInterrupted) || !strings.Contains(err.Error(), "another process")) {
		t.Errorf("error of one who waited: %v", err)
	}
	return err != nil
}

// TestGuardEnds: a home need not say what came of a try.
func TestGuardEnds(t *testing.T) {
	dir := t.TempDir()
	spec := Spec{File, write(t, filepath.Join(dir, "pin"), "1234")}
	opt := Options{What: what, State: dir}
	s := New(spec, opt)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	try := func(ctx context.Context) {
		t.Helper()
		if _, err := s.Secret(ctx); err != nil {
			t.Fatal(err)
		}
	}

	try(ctx)
	try(ctx) // again, without a word: it does not wait for itself
	if !held(t, spec, opt) {
		t.Fatal("two may try at once")
	}
	for name, end := range map[string]func(){"Accepted": s.Accepted, "Release": s.Release, "Close": s.Close} {
		try(ctx)
		end()
		if held(t, spec, opt) {
			t.Errorf("held after %s", name)
		}
	}

	// The end of a context ends its own try and no other.
	try(ctx)
	longer, cancelLonger := context.WithCancel(t.Context())
	try(longer)
	cancel()
	if !held(t, spec, opt) {
		t.Error("the end of one try ended the other")
	}
	cancelLonger()
	waitFree(t, spec, opt)

	// An error leaves nothing held.
	must(t, os.Remove(spec.Place))
	fails(t, s, ErrMissing)
	write(t, spec.Place, "1234")
	if held(t, spec, opt) {
		t.Error("held after an error")
	}
	// Nor does a handover: it is not tried here.
	credential := Spec{Credential, "pin"}
	opt.Getenv = func(string) string { return dir }
	if value, _, err := New(credential, opt).Handover(t.Context()); string(value) != "1234" {
		t.Fatal(err)
	}
	if held(t, credential, opt) {
		t.Error("held after a handover")
	}
}

// waitFree waits as others do.
func waitFree(t *testing.T, spec Spec, opt Options) {
	t.Helper()
	other := New(spec, opt)
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), hold/2)
	defer cancel()
	if _, err := other.Secret(ctx); err != nil {
		t.Fatal("not free: ", err)
	}
}

// TestHold: a context that never ends holds others up for a while only.
func TestHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	synctest.Test(t, func(t *testing.T) {
		g, err := acquire(t.Context(), path, nil)
		must(t, err)
		u, _ := g.enter()
		g.until(context.Background(), u)
		time.Sleep(hold - time.Second) // of the bubble
		synctest.Wait()
		second, ok := g.enter()
		if !ok {
			t.Fatal("a try is cut short")
		}
		g.leave(second)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, ok := g.enter(); ok {
			t.Error("it is held for ever")
		}
		again, err := acquire(t.Context(), path, func() { t.Error("it is still locked") })
		must(t, err)
		again.end()
		again.end()
	})
}

// TestPatience: nobody waits for ever, even if its own context would.
func TestPatience(t *testing.T) {
	dir := t.TempDir()
	spec, opt := Spec{File, write(t, filepath.Join(dir, "pin"), "1234")}, Options{What: what, State: dir}
	synctest.Test(t, func(t *testing.T) {
		s := New(spec, opt)
		must(t, s.store.ready())
		stopped, err := acquire(t.Context(), s.store.marker()+".lock", nil) // by a process that was stopped
		must(t, err)
		defer stopped.end()
		began := time.Now()
		_, err = s.Secret(context.Background())
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "another process is trying it (lock file ") {
			t.Errorf("got %v", err)
		}
		if waited := time.Since(began); waited < askpassPatience+hold || waited > 2*patience {
			t.Errorf("waited for %v; another may be asked for %v and try for %v", waited, askpassPatience, hold)
		}
	})
}

func BenchmarkSecret(b *testing.B) {
	dir := b.TempDir()
	path := write(b, filepath.Join(dir, "pin"), "1234\n")
	s := New(Spec{File, path}, Options{What: what, State: dir})
	for b.Loop() {
		value, err := s.Secret(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		Wipe(value)
		s.Accepted()
	}
}
