package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The same client is told the same again; another one, or later, it is asked.
func TestMemo(t *testing.T) {
	m := &memo{path: filepath.Join(t.TempDir(), "refused", "asked-x")}
	if err := m.read(); err != nil {
		t.Fatalf("before anything was asked: %v", err)
	}
	m.write(errors.New("the PIN was\nrefused"))
	if err := m.read(); err == nil || !strings.HasPrefix(err.Error(), "the PIN was refused (") {
		t.Errorf("got %v", err)
	}
	old := time.Now().Add(-2 * memoFor)
	if err := os.Chtimes(m.path, old, old); err != nil {
		t.Fatal(err)
	}
	if err := m.read(); err != nil {
		t.Errorf("later: %v", err)
	}
	m.write(errors.New("x"))
	text, err := os.ReadFile(m.path)
	if err != nil {
		t.Fatal(err)
	}
	text = append([]byte(strconv.Itoa(os.Getppid()+1)), text[strings.IndexByte(string(text), ' '):]...)
	if err := os.WriteFile(m.path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.read(); err != nil {
		t.Errorf("another client: %v", err)
	}
}
