//go:build unix

package pin

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program writes a shell script that can be run.
func program(t *testing.T, dir, script string) Spec {
	t.Helper()
	path := filepath.Join(dir, "ask pass")
	write(t, path+".new", "#!/bin/sh\n"+script+"\n")
	must(t, os.Chmod(path+".new", 0o700))
	must(t, os.Rename(path+".new", path))
	return Spec{Askpass, path}
}

func TestAskpass(t *testing.T) {
	dir := t.TempDir()
	for script, want := range map[string]string{
		`echo 1234`:                             "1234",
		`printf 1234`:                           "1234",
		`printf '1234\r\nsecond line\n'`:        "1234",
		`printf '%s' "$1"`:                      what + ": ",
		`[ $# = 1 ] && echo "$#"`:               "1",
		`read x; [ -z "$x" ] && echo null`:      "null",
		`echo ` + canary + ` >&2; echo ok`:      "ok",
		`sleep 3 & echo left something running`: "left something running",
		`printf '%s' '$HOME;|&'`:                "$HOME;|&",
		`printf ok; printf '\n%03000d' 1`:       "ok",
	} {
		for _, terminal := range []bool{true, false} {
			s := New(program(t, dir, script), Options{What: what, Terminal: terminal})
			if got := secret(t, s); got != want {
				t.Errorf("%s: got %q", script, got)
			}
			if s.Human() {
				t.Error("a program is no human")
			}
		}
	}
	// It is asked once, and again when that was wrong.
	count := filepath.Join(dir, "count")
	s := New(program(t, dir, `echo x >>'`+count+`'; wc -c <'`+count+`' | tr -d ' '`), Options{What: what, State: dir})
	must(t, s.Ready(t.Context()))
	for range 3 {
		if got := secret(t, s); got != "2" {
			t.Errorf("got %q", got)
		}
	}
	s.Refused()
	if got := secret(t, s); got != "4" {
		t.Errorf("got %q", got)
	}
}

func TestAskpassRefuses(t *testing.T) {
	dir := t.TempDir()
	for script, want := range map[string]struct {
		err  error
		text string
	}{
		`echo ` + canary + `; exit 1`:                         {ErrCancelled, "was cancelled: exit status 1"},
		`echo ` + canary + `; kill -9 $$`:                     {ErrCancelled, "was cancelled: signal: killed"},
		`true`:                                                {ErrMalformed, "it is empty"},
		`printf '\n` + canary + `\n'`:                         {ErrMalformed, "it is empty"},
		`printf '` + canary + `%0300d\n' 1`:                   {ErrMalformed, "longer than 256 bytes"},
		`printf '` + canary + `\0\n'`:                         {ErrMalformed, "NUL byte"},
		`while echo ` + canary + `; do :; done`:               {ErrMalformed, "4096 bytes or more"},
		`trap "" PIPE; while :; do echo ` + canary + `; done`: {ErrMalformed, "4096 bytes or more"},
		`exec yes ` + canary:                                  {ErrMalformed, "4096 bytes or more"},
	} {
		for _, terminal := range []bool{true, false} {
			fails(t, New(program(t, dir, script), Options{What: what, Terminal: terminal}), want.err, want.text, "askpass program "+dir+"/ask pass ")
		}
	}
	fails(t, New(Spec{Askpass, filepath.Join(dir, "none")}, Options{What: what}), ErrMissing, "check the path")
	fails(t, New(Spec{Askpass, "execproxy-no-such-program"}, Options{What: what}), ErrMissing, "check the path")
	fails(t, New(Spec{Askpass, write(t, filepath.Join(dir, "data"), "x")}, Options{What: what}), ErrUnreadable, "chmod +x "+dir)
	garbage := write(t, filepath.Join(dir, "garbage"), "\x7fELF")
	must(t, os.Chmod(garbage, 0o700))
	fails(t, New(Spec{Askpass, garbage}, Options{What: what}), ErrUnreadable, "exec format error")
}

// TestAskpassSameAgain: a program that prints the same each time is no human who corrects it.
func TestAskpassSameAgain(t *testing.T) {
	dir := t.TempDir()
	spec, opt := program(t, dir, "echo "+canary), Options{What: what, State: dir}
	s := New(spec, opt)
	secret(t, s)
	s.Refused()
	fails(t, s, ErrRefused)
	other := New(spec, opt)
	fails(t, other, ErrRefused, "have it print the right one")
	if err := other.Ready(t.Context()); !errors.Is(err, ErrRefused) {
		t.Errorf("it would be handed over: %v", err)
	}
	program(t, dir, "echo right")
	if got := secret(t, other); got != "right" {
		t.Errorf("got %q", got)
	}
	other.Accepted()
	if s.store.load() != nil {
		t.Error("the marker stays")
	}
}

// TestAskpassEnds: a program that is given up is killed with what it started, and reaped.
func TestAskpassEnds(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	must(t, syscall.Mkfifo(fifo, 0o600))
	spec := program(t, dir, `exec 9>'`+fifo+`'; echo up >&9; echo `+canary+`; sleep 1000 & wait`)
	for name, c := range map[string]struct {
		patience time.Duration
		want     []error
	}{
		"cancelled": {0, []error{ErrInterrupted, context.Canceled}},
		"too late":  {300 * time.Millisecond, []error{ErrTimeout}},
	} {
		s := New(spec, Options{What: what})
		s.patience = c.patience
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan bool, 1)
		go func() {
			f, err := os.Open(fifo) // waits for the program
			if err != nil {
				gone <- false
				return
			}
			defer f.Close()
			lines := bufio.NewScanner(f)
			lines.Scan()
			if c.patience == 0 {
				cancel()
			}
			for lines.Scan() {
			}
			gone <- true // all that had it open
		}()
		_, err := s.Secret(ctx)
		cancel()
		if err == nil {
			t.Fatalf("%s: no error", name)
		}
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		hides(t, err.Error())
		if c.patience > 0 && !strings.Contains(err.Error(), "did not answer in time") {
			t.Errorf("%s: got %v", name, err)
		}
		select {
		case <-gone:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: it still runs", name)
		}
		// No child of ours is left, not even a dead one.
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
			t.Errorf("%s: child %d is left, %v", name, pid, err)
		}
	}
}

// A client's lock that this process inherited is not the program's, too.
func TestAskpassInheritsNothing(t *testing.T) {
	dir := t.TempDir()
	lock, err := unix.Open(filepath.Join(dir, "lock"), unix.O_RDWR|unix.O_CREAT, 0o600) // without close-on-exec, as inherited
	must(t, err)
	defer unix.Close(lock)
	s := New(program(t, dir, `[ -e /dev/fd/`+strconv.Itoa(lock)+` ] && echo inherited || echo clean`), Options{What: what})
	if got := secret(t, s); got != "clean" {
		t.Errorf("the program's descriptors: %s", got)
	}
}
