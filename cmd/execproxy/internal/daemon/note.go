package daemon

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/execproxy/execproxy/proxy/socket"
)

// maxNote bounds what is read of a note.
const maxNote = 64 << 10

// writeNote leaves a note for processes of this user. Without it they know less; so
// nobody is told that it could not be written. In a directory that somebody else can
// reach there is none: after su or sudo it may lead to a file that we would overwrite.
func writeNote(path string, text []byte) {
	if _, err := socket.OpenDir(filepath.Dir(path)); err != nil {
		return
	}
	_ = os.Remove(path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.Write(text)
}

// readNote returns no text where there is no note, or something that is none of ours.
func readNote(path string) (text []byte, info fs.FileInfo) {
	f, err := os.OpenFile(path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return nil, nil
	}
	defer f.Close()
	info, err = f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxNote {
		return nil, nil
	}
	if text, err = io.ReadAll(io.LimitReader(f, maxNote)); err != nil {
		return nil, nil
	}
	return text, info
}
