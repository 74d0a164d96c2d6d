package demo

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestStepPrints(t *testing.T) {
	var plain, color bytes.Buffer
	for _, s := range []*steps{{out: &plain}, {out: &color, color: true}} {
		s.begin("A part")
		if err := s.do(t.Context(), "good", func(context.Context) (string, error) { return "seen", nil }); err != nil {
			t.Error(err)
		}
		why := errors.New("reason")
		err := s.do(t.Context(), "bad", func(context.Context) (string, error) { return "", why })
		var se *StepError
		if !errors.As(err, &se) || se.Step != "bad" || se.Section != "A part" || !errors.Is(err, why) {
			t.Errorf("error %#v", err)
		}
		if got := err.Error(); got != `demo: step "bad" of "A part" failed: reason` {
			t.Error(got)
		}
	}
	if got := scrub(plain.String()); got != "\nA part\n  ✓     T ms  good      seen\n  ✗     T ms  bad       reason\n" {
		t.Errorf("plain: %q", got)
	}
	if strings.Contains(plain.String(), "\x1b") {
		t.Error("escape sequences in plain output")
	}
	if !strings.Contains(color.String(), "\x1b[32m✓\x1b[0m") || !strings.Contains(color.String(), "\x1b[31m✗\x1b[0m") {
		t.Errorf("color: %q", color.String())
	}
}

func TestStepInterrupted(t *testing.T) {
	s := &steps{out: &bytes.Buffer{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	sigint := errors.New("interrupted")
	cancel(sigint)
	ran := false
	err := s.do(ctx, "next", func(context.Context) (string, error) { ran = true; return "", nil })
	if ran || !errors.Is(err, sigint) {
		t.Errorf("ran %v, %v", ran, err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	err = s.do(ctx, "this", func(ctx context.Context) (string, error) {
		cancel(sigint)
		return "", ctx.Err()
	})
	if !errors.Is(err, sigint) {
		t.Errorf("interrupted inside: %v", err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestStepUnprintable(t *testing.T) {
	s := &steps{out: brokenPipe{}}
	if err := s.do(t.Context(), "x", func(context.Context) (string, error) { return "", nil }); err == nil {
		t.Error("nobody reads, and nobody is told")
	}
}

func TestHoldsNone(t *testing.T) {
	key := []byte("-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAA\nBBBBBBBBBBBBBBBB\n-----END PRIVATE KEY-----\n")
	secrets := map[string][]byte{"key": key, "secret": []byte("s3cr3t-access-key")}
	if err := holdsNone([]byte(`{"status":{"token":"another"}}`), secrets); err != nil {
		t.Error(err)
	}
	asJSON, _ := json.Marshal(map[string]string{"clientKeyData": string(key)})
	for name, text := range map[string]string{
		"PEM in JSON":      string(asJSON),
		"PEM":              string(key),
		"bare base64":      `"AAAAAAAAAAAAAAAABBBBBBBBBBBBBBBB"`,
		"base64 of PEM":    base64.StdEncoding.EncodeToString(key),
		"a secret":         `"x": "s3cr3t-access-key"`,
		"base64 of secret": base64.StdEncoding.EncodeToString([]byte("s3cr3t-access-key")),
	} {
		err := holdsNone([]byte(text), secrets)
		if err == nil {
			t.Errorf("%s: not found", name)
		} else if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: the error shows the secret", name)
		}
	}
}

func TestPlace(t *testing.T) {
	p, err := newPlace(t.TempDir(), []string{"PATH=/bin", "AWS_PROFILE=prod", "EXECPROXY_SERVER=https://prod", "HTTPS_PROXY=http://x",
		"KUBECONFIG=/prod", "HOME=/home/me", "XDG_RUNTIME_DIR=/run/user/1000"})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range p.env {
		name, value, _ := strings.Cut(kv, "=")
		if name != "PATH" && !strings.HasPrefix(value, p.dir) {
			t.Errorf("%s leads out of the private directory", kv)
		}
	}
	if !slices.Contains(p.env, "PATH=/bin") || !slices.Contains(p.env, "HOME="+p.dir) {
		t.Errorf("environment %q", p.env)
	}
	file, err := p.write("key", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.write("key", nil); err == nil {
		t.Error("an existing file was overwritten")
	}
	for path, want := range map[string]os.FileMode{p.dir: 0o700, file: 0o600} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if runtime.GOOS != "windows" && fi.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, fi.Mode().Perm(), want)
		}
	}
	if err := p.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Error("the private directory is still there")
	}
}

// A temporary directory too deep for a socket's address is left for a shorter one.
func TestPlaceDeep(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("paths are limited otherwise on Windows")
	}
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 80))
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := newPlace(deep, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.remove() }()
	if n := len(p.dir) + len("/execproxy/0123456789abcdef.sock.ctl"); n > socketMax {
		t.Errorf("sockets in %s would need %d bytes", p.dir, n)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
