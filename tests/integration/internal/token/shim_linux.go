package token

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

//go:embed testdata/shim.c
var shimSource []byte

// BuildShim compiles the module that shims are copies of. Once per run will do.
func BuildShim(ctx context.Context, dir string) (path string, err error) {
	source, path := filepath.Join(dir, "shim.c"), filepath.Join(dir, "shim.so")
	if err := os.WriteFile(source, shimSource, 0o600); err != nil {
		return "", err
	}
	_, err = run(ctx, nil, "gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", path, source, "-ldl")
	return path, err
}

// Shim is a PKCS#11 module before another one: it counts calls and fails as told.
type Shim struct {
	Module string // path of the PKCS#11 library
}

// A Rule says what a function of a shim does.
type Rule string

// Rules. Print, CloseSessions and Flags are done besides what the function does,
// the others instead.
const (
	Crash         Rule = "crash"
	Hang          Rule = "hang"  // for ever
	Print         Rule = "print" // to stdout
	CloseSessions Rule = "close" // all of the token, before the function
)

// Return is a rule to return a CKR_ code, such as 0xA4 (CKR_PIN_LOCKED).
func Return(code uint) Rule { return Rule(fmt.Sprintf("return %#x", code)) }

// Flags is a rule for C_GetTokenInfo: it adds CKF_ flags, such as 0x40000 (CKF_USER_PIN_LOCKED).
func Flags(flags uint) Rule { return Rule(fmt.Sprintf("flags %#x", flags)) }

// Once is a rule for the next call alone.
func Once(r Rule) Rule { return "once " + r }

// NewShim puts a shim, built by BuildShim, before a module; its files are in dir/shim.
func NewShim(dir, built, module string) (*Shim, error) {
	code, err := os.ReadFile(built)
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "shim")
	s := &Shim{Module: filepath.Join(dir, "shim.so")}
	if err := os.MkdirAll(s.Module+".rules", 0o700); err != nil {
		return nil, err
	}
	for path, content := range map[string][]byte{s.Module: code, s.Module + ".module": []byte(module), s.calls(): nil} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Shim) calls() string { return s.Module + ".calls" }

// Set gives a function (as C_Sign) a rule, which processes that use it already
// follow, too. "" takes it away.
func (s *Shim) Set(function string, r Rule) error {
	path := filepath.Join(s.Module+".rules", function)
	if r == "" {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	tmp := s.Module + ".rule"
	if err := os.WriteFile(tmp, []byte(r), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Calls returns how often a function was called, by all processes.
func (s *Shim) Calls(function string) (n int, err error) {
	calls, err := os.ReadFile(s.calls())
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(calls) {
		if string(bytes.TrimSuffix(line, []byte("\n"))) == function {
			n++
		}
	}
	return n, nil
}

// Await waits until a function has been called n times.
func (s *Shim) Await(ctx context.Context, function string, n int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := s.Calls(function)
		if err != nil || got >= n {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s was called %d times, not %d: %w", function, got, n, ctx.Err())
		}
	}
}
