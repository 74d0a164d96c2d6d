package pin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
)

func TestFile(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{
		"1234": "1234", "1234\n": "1234", "1234\r\n": "1234", " 12 34 \n": " 12 34 ", "\xc3\xbc\n": "ü",
		strings.Repeat("x", 256) + "\r\n": strings.Repeat("x", 256),
	} {
		path := write(t, filepath.Join(dir, "pin"), content)
		s := New(Spec{File, path}, Options{What: what})
		if got := secret(t, s); got != want {
			t.Errorf("%q: got %q", content, got)
		}
		replace(t, path, "another\n")
		if got := secret(t, s); got != "another" {
			t.Errorf("the file is not read again: got %q", got)
		}
	}
	for content, want := range map[string]string{
		"":                                  "it is empty",
		"\n":                                "it is empty",
		"\r\n":                              "it is empty",
		canary + "\n\n":                     "more than one line",
		canary + "\r":                       "more than one line",
		canary + "\nx":                      "more than one line",
		canary + "\x00":                     "NUL byte",
		"\xef\xbb\xbf" + canary:             "byte order mark",
		"\xff\xfe1\x002\x00":                "byte order mark",
		strings.Repeat(canary, 24):          "longer than 256 bytes",
		strings.Repeat(canary, 1000):        "longer than 256 bytes",
		strings.Repeat("x", 257) + "\n":     "longer than 256 bytes",
		strings.Repeat("x", 256) + "\r\n\n": "more than one line",
	} {
		path := write(t, filepath.Join(dir, "pin"), content)
		err := fails(t, New(Spec{File, path}, Options{What: what}), ErrMalformed, want, "file "+path)
		if got, ok := err.(*Error); !ok || got.Cure == "" {
			t.Errorf("no cure: %v", err)
		}
	}
}

func TestFileRefuses(t *testing.T) {
	dir := t.TempDir()
	s := New(Spec{File, filepath.Join(dir, "none")}, Options{What: what})
	if err := fails(t, s, ErrMissing, "does not exist: check the path"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
	fails(t, New(Spec{File, dir}, Options{What: what}), ErrUnreadable, "not a regular file")
	if err := s.unreadable("/p", &fs.PathError{Op: "open", Path: "/p", Err: fs.ErrPermission}); !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "chmod 600 /p") {
		t.Errorf("permission denied: %v", err)
	}
	// As an unprivileged user sees another's file.
	if err := s.checkPrivate("/p", owned{known: true, uid: os.Geteuid() + 4711, mode: 0o600}); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "chown") {
		t.Errorf("a foreign file: %v", err)
	}
	if err := s.checkPrivate("/p", owned{known: true, uid: 0, mode: 0o400}); err != nil {
		t.Errorf("root's file: %v", err)
	}
}

// TestWhileWritten: half a PIN is a wrong one.
func TestWhileWritten(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "pin"), "12")
	s := New(Spec{File, path}, Options{What: what})
	times := 0
	s.between = func() {
		if times++; times == 1 {
			write(t, path, "1234")
		}
	}
	if got := secret(t, s); got != "1234" || times != 2 {
		t.Errorf("got %q after %d reads", got, times)
	}
	s.between = func() { times++; write(t, path, strings.Repeat("1", times)) }
	fails(t, s, ErrUnreadable, "being written")
}

func TestCredential(t *testing.T) {
	dir := t.TempDir()
	env := map[string]string{}
	s := New(Spec{Credential, "token"}, Options{What: what, Getenv: func(name string) string { return env[name] }})
	fails(t, s, ErrMissing, "CREDENTIALS_DIRECTORY is not set", "LoadCredential=token:PATH")
	fails(t, New(Spec{Credential, "token"}, Options{What: what}), ErrMissing, "not set")
	env["CREDENTIALS_DIRECTORY"] = "relative"
	fails(t, s, ErrMissing, "absolute")
	env["CREDENTIALS_DIRECTORY"] = dir
	fails(t, s, ErrMissing, "LoadCredential=token:PATH")
	path := write(t, filepath.Join(dir, "token"), "1234\n")
	if got := secret(t, s); got != "1234" {
		t.Errorf("got %q", got)
	}
	s.Refused()
	replace(t, path, "1234\n") // as a restart of the service does
	fails(t, s, ErrRefused, "restart the service")
	replace(t, path, "4321\n")
	if got := secret(t, s); got != "4321" {
		t.Errorf("got %q", got)
	}
}

func TestValue(t *testing.T) {
	given := []byte(canary)
	s := New(Spec{Kind: Value}, Options{What: what, Value: given})
	Wipe(given)
	if !bytes.Equal(given, make([]byte, len(canary))) {
		t.Error("Wipe leaves something")
	}
	for range 2 { // the copy is the caller's
		value, err := s.Secret(t.Context())
		if err != nil || string(value) != canary {
			t.Fatalf("got %q, %v", value, err)
		}
		Wipe(value)
	}
	s.Refused()
	fails(t, s, ErrRefused, "the given value was refused at ")
	fails(t, New(Spec{Kind: Value}, Options{What: what}), ErrMissing)
	fails(t, New(Spec{Kind: Value}, Options{What: what, Value: []byte{}}), ErrMalformed, "empty")
	fails(t, New(Spec{Kind: Value}, Options{What: what, Value: []byte(canary + "\x00")}), ErrMalformed)
	fails(t, New(Spec{Kind: 9}, Options{What: what}), ErrMissing)

	s = New(Spec{Kind: Value}, Options{What: what, Value: []byte("1234")})
	kept := s.kept.value
	s.Close()
	if !bytes.Equal(kept, make([]byte, 4)) {
		t.Error("Close does not wipe")
	}
	fails(t, s, ErrMissing)
}

// TestHandover: what a daemon cannot have by itself it gets from the plugin.
func TestHandover(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pin"), "1234")
	if value, ok, err := New(Spec{File, path}, Options{What: what}).Handover(t.Context()); value != nil || ok || err != nil {
		t.Errorf("a file is handed over: %q, %v, %v", value, ok, err)
	}
	value, ok, err := New(Spec{Credential, "pin"}, Options{What: what, Getenv: func(string) string { return dir }}).Handover(t.Context())
	if string(value) != "1234" || !ok || err != nil {
		t.Errorf("got %q, %v, %v", value, ok, err)
	}
	for _, kind := range []Kind{Prompt, Credential, Askpass, Descriptor} {
		daemon := New(Spec{Kind: kind, Place: "x"}, Options{What: what, Value: value, Detached: true, Terminal: true})
		for range 2 { // a home that reopens
			if got := secret(t, daemon); got != "1234" {
				t.Errorf("%v: got %q", kind, got)
			}
		}
		if daemon.Human() != (kind == Prompt) {
			t.Errorf("%v: Human is %v", kind, daemon.Human())
		}
		daemon.Accepted()
		if daemon.Human() {
			t.Errorf("%v: nobody has typed it for the next try", kind)
		}
		secret(t, daemon)
		daemon.Refused()
		fails(t, daemon, ErrRefused)
	}
	// Without one it asks nobody and runs nothing.
	asked := filepath.Join(dir, "asked")
	program := write(t, filepath.Join(dir, "ask"), "#!/bin/sh\n>"+asked)
	must(t, os.Chmod(program, 0o700))
	fails(t, New(Spec{Askpass, program}, Options{What: what, Detached: true}), ErrMissing, "the process that the user started")
	fails(t, New(Spec{Descriptor, "0"}, Options{What: what, Detached: true}), ErrMissing, "the process that the user started")
	fails(t, New(Spec{}, Options{What: what, Detached: true, Terminal: true}), ErrNoTerminal, "EXECPROXY_PIN_SOURCE")
	if _, err := os.Stat(asked); err == nil {
		t.Error("the askpass program was run")
	}
	// A daemon reads a file whatever it got.
	if got := secret(t, New(Spec{File, path}, Options{What: what, Value: []byte("other"), Detached: true})); got != "1234" {
		t.Errorf("got %q", got)
	}
}

func TestNoTerminalNamesTheWays(t *testing.T) {
	s := New(Spec{}, Options{What: what})
	err := fails(t, s, ErrNoTerminal, "pin-source", "EXECPROXY_PIN_SOURCE", "--pin-source", "file:PATH", "askpass:PROGRAM")
	const want = what + ": there is no terminal to ask on: run it from one, or name another source, with pin-source in the key's URI, EXECPROXY_PIN_SOURCE or --pin-source: file:PATH, fd:N, credential:NAME or askpass:PROGRAM"
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if s.Ready(t.Context()) == nil {
		t.Error("Ready does not ask")
	}
}

// TestPrints: whatever prints a Source shows its kind and place, and never the value.
func TestPrints(t *testing.T) {
	opt := Options{What: "PIN of token \x1b[2Jx\n", Value: []byte(canary)}
	s := New(Spec{Kind: Value}, opt)
	secret(t, s)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "pin", s, "options", opt, "spec", s.spec)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "pin", s, "options", opt)
	encoded, _ := json.Marshal(map[string]any{"pin": s})
	printed := log.String() + string(encoded) + s.GoString()
	hexed := fmt.Sprintf("%x", canary)
	numbers := strings.Trim(fmt.Sprint([]byte(canary)), "[]")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%d", "%q"} {
		if got := fmt.Sprintf(verb, s); got != s.String() {
			t.Errorf("%s: got %q", verb, got)
		}
		text := fmt.Sprintf(verb, s) + fmt.Sprintf(verb, opt) + fmt.Sprintf(verb, &opt)
		text += fmt.Sprintf(verb, struct{ a *Source }{s}) + fmt.Sprintf(verb, []*Source{s}) + fmt.Sprintf(verb, []Options{opt})
		if strings.Contains(strings.ToLower(text), hexed) || strings.Contains(text, numbers) {
			t.Errorf("%s shows the value: %s", verb, text)
		}
		printed += text
	}
	hides(t, printed)
	if got, want := fmt.Sprintf("%#v", s), "PIN of token ?[2Jx? from the given value"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := fmt.Sprint(New(Spec{File, "/p"}, Options{})); got != "PIN from file /p" {
		t.Errorf("got %q", got)
	}
}

// TestConcurrent: a home may be used from many sides.
func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pin"), "1234")
	s := New(Spec{File, path}, Options{What: what, State: dir})
	done := make(chan error)
	for range 8 {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			for range 20 {
				value, err := s.Secret(ctx)
				if err != nil || string(value) != "1234" {
					done <- fmt.Errorf("%q, %w", value, err)
					return
				}
				s.Human()
				_ = s.String()
				s.Accepted()
			}
			done <- nil
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestSecret: a home knows a Source by these.
func TestSecret(t *testing.T) {
	var s signer.Secret = New(Spec{}, Options{})
	if _, ok := s.(signer.Accepter); !ok {
		t.Error("does not want to know what was right")
	}
	if _, ok := s.(interface{ Human() bool }); !ok {
		t.Error("does not tell whether it was typed")
	}
	s.Refused() // of nothing
	s.(signer.Accepter).Accepted()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	busy := New(Spec{}, Options{What: what})
	busy.turn <- struct{}{}
	if _, err := busy.Secret(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
