package socket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// Inherit serves a listening socket that another process made, a service manager for one, as [ListenConfig.Listen] and
// [ListenConfig.ListenLoopback] do theirs: Unix sockets admit our own uid and root, of TCP sockets only loopback ones are
// taken. Its name, if it has one, stays when the listener is closed. f may be closed afterwards.
func (c ListenConfig) Inherit(f *os.File) (net.Listener, error) {
	if err := checkListening(f); err != nil {
		return nil, fmt.Errorf("socket %q that was passed: %w", f.Name(), err)
	}
	nl, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("socket %q that was passed: %w", f.Name(), err)
	}
	switch l := nl.(type) {
	case *net.UnixListener:
		path := l.Addr().String()
		if !filepath.IsAbs(path) {
			_ = l.Close()
			return nil, fmt.Errorf("socket %q that was passed: its address %q is no absolute path: give it one (ListenStream=/run/…)", f.Name(), path)
		}
		l.SetUnlinkOnClose(false)
		u := &Listener{path: filepath.Clean(path), log: logger(c.Logger)}
		u.accepts = newPatient(l, u.log)
		return u, nil
	case *net.TCPListener:
		if _, err := loopbackAddr(l.Addr().String()); err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("socket %q that was passed: %w", f.Name(), err)
		}
		return newPatient(l, logger(c.Logger)), nil
	}
	_ = nl.Close()
	return nil, fmt.Errorf("socket %q that was passed: %w", f.Name(), errNotStream)
}

var errNotStream = errors.New("is not a stream socket that listens: use ListenStream= with a path or a loopback address, and Accept=no")
