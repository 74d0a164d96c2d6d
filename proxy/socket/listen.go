package socket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ErrInUse says that a process listens on the socket, or that this cannot be excluded.
var ErrInUse = errors.New("socket is in use")

// probeTimeout bounds the question whether somebody listens. The kernel answers it at once.
const probeTimeout = 5 * time.Second

// ListenConfig holds what [Listen] takes as default.
type ListenConfig struct {
	Logger *slog.Logger // connections that are refused, accept errors; nil: nowhere
}

// Listener accepts connections of this process's uid, and of root, on a Unix socket. Its connections are
// *[net.UnixConn].
type Listener struct {
	accepts *patient
	path    string
	inode   fs.FileInfo // nil: another process named it
	log     *slog.Logger

	refused atomic.Uint64
	told    atomic.Int64 // when a refusal was last logged, Unix seconds

	closeOnce sync.Once
	closeErr  error
}

// Listen listens on the Unix socket at path, which gets mode 0600. The caller holds a [Lock] that every process takes
// before it listens on this path.
//
// A socket that stands at path is removed if it is ours and nobody listens on it; if somebody does, or the question
// has no clear answer, the error wraps [ErrInUse]. Anything else at path is left alone, and the error is an
// *[UnsafeError].
func Listen(path string) (*Listener, error) { return ListenConfig{}.Listen(path) }

// Listen is the function [Listen] under this configuration.
func (c ListenConfig) Listen(path string) (*Listener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The mode is given before the name exists, so that there is no moment of another mode, and no umask to set for
	// the whole process.
	lc := net.ListenConfig{Control: controlMode}
	nl, err := lc.Listen(context.Background(), "unix", path)
	if isAddrInUse(err) {
		return nil, fmt.Errorf("listening on %q: %w: it appeared just now, so a process ignores the lock", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	ul := nl.(*net.UnixListener)
	ul.SetUnlinkOnClose(false) // by name alone; Close knows better
	l := &Listener{path: path, log: logger(c.Logger)}
	l.accepts = newPatient(ul, l.log)
	if l.inode, err = ownInode(path); err != nil {
		_ = ul.Close()
		return nil, fmt.Errorf("listening on %q: %w", path, err)
	}
	return l, nil
}

// ownInode is the inode that was just bound. While the listener is open the kernel keeps it, so that its number
// cannot come back as another file's.
func ownInode(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if err := checkSocket(path, info); err != nil {
		return nil, err
	}
	if !wantMode(info) {
		if err := os.Chmod(path, 0o600); err != nil {
			return nil, err
		}
	}
	return info, nil
}

func checkSocket(path string, info fs.FileInfo) error {
	if info.Mode()&fs.ModeSocket == 0 {
		return &UnsafeError{path, "exists and is not a socket", "remove it or choose another path"}
	}
	if uid, ok := ours(info); !ok {
		return &UnsafeError{path, fmt.Sprintf("is a socket of uid %d, not ours", uid), "choose a path in a directory of your own"}
	}
	return nil
}

// removeStale removes a socket of ours that nobody listens on.
func removeStale(path string) error {
	before, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	if err := checkSocket(path, before); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("listening on %q: %w: use the proxy that serves there, or stop it", path, ErrInUse)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !isRefused(err):
		// A full backlog (EAGAIN), a socket of another kind (EPROTOTYPE), a mode that keeps us out (EACCES): none of
		// them says that the owner is gone.
		return fmt.Errorf("listening on %q: %w: asking who listens: %w", path, ErrInUse, err)
	}
	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	if !os.SameFile(before, now) {
		return fmt.Errorf("listening on %q: %w: it was replaced just now, so a process ignores the lock", path, ErrInUse)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing stale socket: %w", err)
	}
	return nil
}

// Accept returns the next connection whose peer is of our own uid or root. Others are closed before a byte is read or
// written, counted, and logged at most once a second. Errors that pass, such as a lack of descriptors, are waited out.
//
// The uid is the one that the kernel noted when the peer connected. A pid plays no part: by now it may be another
// process's.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.accepts.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := PeerUID(c)
		if err == nil && allowed(uid) || !uidKnown && errors.Is(err, errors.ErrUnsupported) {
			return c, nil
		}
		_ = c.Close()
		l.refuse(uid, err)
	}
}

func (l *Listener) refuse(uid int, err error) {
	n := l.refused.Add(1)
	now, last := time.Now().Unix(), l.told.Load()
	if now == last || !l.told.CompareAndSwap(last, now) {
		return // whoever is refused must not be able to fill the log
	}
	if err != nil {
		l.log.Warn("connection refused: peer unknown", "socket", l.path, "error", err, "refused", n)
		return
	}
	l.log.Warn("connection refused: peer is another user", "socket", l.path, "uid", uid, "refused", n)
}

// Refused is the number of connections that were closed because of their peer's uid.
func (l *Listener) Refused() uint64 { return l.refused.Load() }

// Addr is the socket's address, a *[net.UnixAddr].
func (l *Listener) Addr() net.Addr { return l.accepts.Addr() }

// Path is the path given to [Listen].
func (l *Listener) Path() string { return l.path }

// Present reports whether the path still names this listener's socket. If it does not, nobody can connect any more.
func (l *Listener) Present() bool {
	now, err := os.Lstat(l.path)
	return err == nil && l.inode != nil && os.SameFile(l.inode, now)
}

// Close removes the socket's name, if it is still its own, and ends Accept. The caller still holds the lock. Closing
// again changes nothing and returns the same.
func (l *Listener) Close() error {
	l.closeOnce.Do(func() {
		// The name goes first: as long as the listener is open, its inode's number is its own.
		var err error
		if l.Present() {
			if err = os.Remove(l.path); errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
		l.closeErr = both(err, l.accepts.Close())
	})
	return l.closeErr
}

// both is errors.Join on one line.
func both(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
