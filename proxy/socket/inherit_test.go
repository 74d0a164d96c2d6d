//go:build unix

package socket

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// file is a socket as a service manager passes it.
func file(t *testing.T, l interface{ File() (*os.File, error) }) *os.File {
	t.Helper()
	f, err := l.File()
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestInheritUnix(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	theirs, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	defer theirs.Close()
	l, err := ListenConfig{}.Inherit(file(t, theirs))
	must(t, err)
	u, ok := l.(*Listener)
	if !ok || u.Path() != path {
		t.Fatalf("%T at %v", l, l.Addr())
	}
	done := make(chan struct{})
	go func() { defer close(done); servePID(u) }()
	if _, err := askPID(path); err != nil {
		t.Error(err)
	}
	must(t, l.Close())
	<-done
	// Its name is another's, who still listens.
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("after Close: %v", err)
	}
	c, err := net.Dial("unix", path)
	must(t, err)
	must(t, c.Close())
}

func TestInheritLoopback(t *testing.T) {
	theirs, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	defer theirs.Close()
	l, err := ListenConfig{}.Inherit(file(t, theirs))
	must(t, err)
	defer l.Close()
	if l.Addr().String() != theirs.Addr().String() {
		t.Errorf("%v became %v", theirs.Addr(), l.Addr())
	}
	go func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_ = c.Close()
		}
	}()
	c, err := l.Accept()
	must(t, err)
	must(t, c.Close())
}

func TestInheritRefuses(t *testing.T) {
	open, err := net.ListenTCP("tcp", &net.TCPAddr{})
	must(t, err)
	defer open.Close()
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	defer udp.Close()
	gram, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(tempDir(t), "g"), Net: "unixgram"})
	must(t, err)
	defer gram.Close()
	listening, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	defer listening.Close()
	conn, err := net.DialTCP("tcp", nil, listening.Addr().(*net.TCPAddr))
	must(t, err)
	defer conn.Close()
	plain, err := os.Create(filepath.Join(tempDir(t), "f"))
	must(t, err)
	defer plain.Close()
	for want, f := range map[string]*os.File{
		"not a loopback address":             file(t, open),
		"is not a stream socket that listen": file(t, udp),
		"ListenStream=":                      file(t, gram),
		"Accept=no":                          file(t, conn),
		"is no socket":                       plain,
	} {
		l, err := ListenConfig{}.Inherit(f)
		if err == nil {
			t.Errorf("%s: took %v", want, l.Addr())
			continue
		}
		oneLine(t, err, want)
	}
}
