package socket

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleVariable makes the test binary play another process: its value is the role, os.Args[1:] are what it works on.
const roleVariable = "SOCKET_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for an event before it fails.
const patience = 30 * time.Second

// tempDir is a directory with a short path, as socket paths are limited, that other users can enter.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// oneLine fails unless err is a single line with all of the words.
func oneLine(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if strings.ContainsAny(err.Error(), "\n\r") {
		t.Errorf("error has more than one line: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// lineLog is a logger whose lines are sent as they come.
func lineLog() (*slog.Logger, <-chan string) {
	w := make(lineWriter, 100)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})), w
}

type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	select {
	case w <- string(b):
	default: // a test that looks reads faster than this
	}
	return len(b), nil
}

// await is what comes from the channel, soon.
func await[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("waited in vain")
	}
	return v
}
