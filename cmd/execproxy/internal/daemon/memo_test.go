package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A directory that others can reach may lead anywhere: root who has somebody's HOME must
// not be led to write.
func TestNoteInForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	writeNote(filepath.Join(open, "a"), []byte("text"))
	if text, _ := readNote(filepath.Join(open, "a")); string(text) != "text" {
		t.Errorf("read %q", text)
	}
	if runtime.GOOS == "windows" {
		return // where links and modes are others
	}
	if err := os.Symlink(victim, filepath.Join(open, "link")); err != nil {
		t.Fatal(err)
	}
	if text, _ := readNote(filepath.Join(open, "link")); text != nil {
		t.Errorf("a link was followed to %q", text)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "b"} {
		writeNote(filepath.Join(open, name), []byte("text"))
	}
	if _, err := os.Lstat(filepath.Join(open, "b")); err == nil {
		t.Error("a note was left where others can write")
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "mine" {
		t.Errorf("the other file: %q, %v", text, err)
	}
}

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
