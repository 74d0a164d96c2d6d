package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// memoFor is how long a plugin's client is not asked again: longer than it takes
// kubectl to give up, shorter than it takes somebody to find the right PIN.
const memoFor = 20 * time.Second

// A memo is what the last plugin of the same client was told when it asked for a PIN, or
// for somebody else's credential, and that went wrong. It holds our own words, the last ones
// of a chained plugin, and nothing that was typed.
type memo struct{ path string }

func (m *memo) write(cause error) {
	writeNote(m.path, []byte(strconv.Itoa(os.Getppid())+" "+oneLine(cause.Error()))) // without it the user is asked again
}

// read returns the error that the same client was told a moment ago, nil where there
// was none.
func (m *memo) read() error {
	text, fi := readNote(m.path)
	if text == nil {
		return nil
	}
	parent, told, ok := strings.Cut(string(text), " ")
	if !ok || time.Since(fi.ModTime()) > memoFor || parent != strconv.Itoa(os.Getppid()) {
		_ = os.Remove(m.path)
		return nil
	}
	return errors.New(told + fmt.Sprintf(" (not asked again for this client within %v)", memoFor))
}

// memoPath is where that stands: beside what else is remembered of wrong PINs.
func memoPath(p Places, id string) string { return filepath.Join(p.State, "refused", "asked-"+id) }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
