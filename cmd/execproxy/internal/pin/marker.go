package pin

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A refusal is what is remembered, on disk, of one that was refused: the state of the file it
// came from, or where there is no file to tell by, a slow hash of it. What was refused is
// wrong here, but it may open something else.
type refusal struct {
	Time  time.Time `json:"time"`
	What  string    `json:"what"`   // for who looks at the file
	Where string    `json:"source"` // likewise
	File  *identity `json:"file,omitempty"`
	Value *digest   `json:"value,omitempty"`
}

type digest struct {
	Salt       []byte `json:"salt"`
	Iterations int    `json:"iterations"`
	Hash       []byte `json:"hash"` // PBKDF2-HMAC-SHA256
}

// iterations take tenths of a second, and only where something was refused. OWASP's number.
const iterations = 600_000

var cost = iterations // tests pay less

// maxIterations keeps a damaged marker from taking for ever.
const maxIterations = 10 * iterations

func newDigest(value []byte) (*digest, error) {
	d := &digest{Salt: make([]byte, 16), Iterations: cost}
	_, _ = rand.Read(d.Salt) // never fails
	var err error
	d.Hash, err = pbkdf2.Key(sha256.New, string(value), d.Salt, d.Iterations, sha256.Size)
	return d, err
}

func (d *digest) is(value []byte) bool {
	got, err := pbkdf2.Key(sha256.New, string(value), d.Salt, d.Iterations, len(d.Hash))
	return err == nil && subtle.ConstantTimeCompare(got, d.Hash) == 1
}

// is tells whether r is what was refused.
func (m *refusal) is(r reading) bool {
	if r.file != nil || m.File != nil {
		return r.file != nil && m.File != nil && *r.file == *m.File
	}
	return m.Value.is(r.value)
}

var errMarker = errors.New("malformed marker")

// parseRefusal reads a marker.
func parseRefusal(data []byte) (*refusal, error) {
	var m refusal
	if json.Unmarshal(data, &m) != nil || m.Time.IsZero() || (m.File == nil) == (m.Value == nil) {
		return nil, errMarker
	}
	if v := m.Value; v != nil && (len(v.Salt) < 16 || len(v.Hash) != sha256.Size || v.Iterations < 1 || v.Iterations > maxIterations) {
		return nil, errMarker
	}
	return &m, nil
}

// A store is where the refusals of one place are: a marker file, and a lock file while one is tried.
type store struct {
	dir  string // "" where nothing is to be remembered
	name string
}

const maxMarker = 8 << 10 // bytes; paths are in it

// newStore names the marker by what is asked for and where it comes from: what one token
// refused may be right for another.
func newStore(state string, spec Spec, what string) store {
	if state == "" {
		return store{}
	}
	h := sha256.New()
	for _, part := range []string{spec.Kind.String(), spec.Place, what} {
		fmt.Fprintf(h, "%d %s\n", len(part), part)
	}
	return store{dir: filepath.Join(state, "refused"), name: hex.EncodeToString(h.Sum(nil)[:8])}
}

func (s store) marker() string { return filepath.Join(s.dir, s.name) }

// ready makes the directory, and refuses one where others could undo what stands there.
func (s store) ready() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(s.dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory: remove it", s.dir)
	}
	o := ownership(info)
	if !o.known {
		return nil
	}
	if o.uid != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d: remove it, or chown it to the user that runs this", s.dir, o.uid)
	}
	if o.mode.Perm() != 0o700 {
		return os.Chmod(s.dir, 0o700)
	}
	return nil
}

// load returns the marker, or nil: one that cannot be made out is as good as none.
func (s store) load() *refusal {
	if s.dir == "" {
		return nil
	}
	f, err := os.OpenFile(s.marker(), os.O_RDONLY|nonblock|noFollow, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	if o := ownership(info); o.known && o.uid != os.Geteuid() {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxMarker))
	if err != nil {
		return nil
	}
	m, err := parseRefusal(data)
	if err != nil {
		return nil
	}
	return m
}

// save replaces the marker in one go: who reads it meanwhile sees the old one or the new one.
func (s store) save(m *refusal) (err error) {
	if s.dir == "" {
		return nil
	}
	if err := s.ready(); err != nil {
		return err
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, "."+s.name+"-") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(append(data, '\n'))
	// A marker that is lost with the power is a try more, and the third may be the last.
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), s.marker())
}

func (s store) clear() error {
	if s.dir == "" {
		return nil
	}
	if err := os.Remove(s.marker()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
