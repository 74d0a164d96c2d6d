//go:build linux

package integration

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// What a hostile user of the same machine does.
const (
	roleKnock = "knock" // connects to the Unix socket PATH and sends open files
	roleSquat = "squat" // serves TLS of its own at HOST:PORT and records what comes
	roleRace  = "race"  // makes and removes everything that can stand at PATH, until it is killed
)

// playKnock sends three open files, and a request, before the other side can
// know who it is, and says how many bytes came back.
func playKnock(path string) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	fd := int(null.Fd())
	// It may be cut before this is sent, which is what is wanted.
	_, _, _ = conn.WriteMsgUnix([]byte("GET /status HTTP/1.1\r\nHost: execproxy\r\n\r\n"), unix.UnixRights(fd, fd, fd), nil)
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	n, err := conn.Read(make([]byte, 512))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the connection stays open: %w", err)
	}
	fmt.Printf("%d bytes\n", n)
	return nil
}

// playSquat prints "listening", and for each connection a line that says what
// the client gave away.
func playSquat(address string) error {
	ca, err := pki.NewCA("execproxy loopback CA")
	if err != nil {
		return err
	}
	pair, err := ca.Issue(pki.Options{CommonName: "127.0.0.1", Hosts: []string{"127.0.0.1", "localhost"}})
	if err != nil {
		return err
	}
	cert, err := pair.TLS()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	config := &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	for {
		raw, err := l.Accept()
		if err != nil {
			return err
		}
		_ = raw.SetDeadline(time.Now().Add(5 * time.Second))
		// Whoever speaks in the clear is heard, too.
		r := bufio.NewReader(raw)
		first, err := r.Peek(1)
		if err != nil {
			fmt.Println("connection: nothing")
		} else if first[0] != 0x16 { // no TLS handshake record
			text, _ := r.ReadString('\n')
			fmt.Printf("connection: in the clear: %q\n", text)
		} else {
			conn := tls.Server(replayed{raw, r}, config)
			handshake := conn.Handshake()
			buf := make([]byte, 4096)
			n, _ := conn.Read(buf)
			fmt.Printf("connection: handshake %v, %d certificates, %d bytes\n", handshake == nil, len(conn.ConnectionState().PeerCertificates), n)
		}
		_ = raw.Close()
	}
}

// replayed is a connection whose beginning was looked at.
type replayed struct {
	net.Conn
	r io.Reader
}

func (c replayed) Read(p []byte) (int, error) { return c.r.Read(p) }

// playRace says "racing" once it has been through all of it, and goes on.
func playRace(path string) error {
	mine, err := os.MkdirTemp(filepath.Dir(path), "mallory-")
	if err != nil {
		return err
	}
	if err := os.Chmod(mine, 0o777); err != nil {
		return err
	}
	told := false
	for {
		for _, put := range []func() error{
			func() error { return os.Mkdir(path, 0o777) },
			func() error { return os.Symlink(mine, path) },
			func() error { return syscall.Mkfifo(path, 0o666) },
			func() error { return os.WriteFile(path, nil, 0o666) },
		} {
			_ = put()
			_ = os.Remove(path) // not the other's: the directory is sticky
		}
		if !told {
			fmt.Println("racing", mine)
			told = true
		}
	}
}

// readMemory reads a byte of another process where every program has some. Too
// little privilege is told before a wrong address is.
func readMemory(pid int) error {
	buf := make([]byte, 1)
	local := []unix.Iovec{{Base: &buf[0], Len: 1}}
	_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x10000, Len: 1}}, 0)
	if errors.Is(err, unix.EFAULT) {
		return nil // it was let in, and nothing is there
	}
	return err
}

// stealDescriptor takes the standard error of another process.
func stealDescriptor(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	stolen, err := unix.PidfdGetfd(fd, 2, 0)
	if err == nil {
		_ = unix.Close(stolen)
	}
	return err
}

// public puts a program where every user may execute it.
func public(program, dir string) (string, error) {
	path := filepath.Join(dir, filepath.Base(program))
	if info, err := os.Stat(program); err == nil && info.Mode().Perm()&0o005 == 0o005 && os.Link(program, path) == nil {
		return path, nil
	}
	in, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	return path, errors.Join(err, out.Close())
}

// spoken is how often a squatter was connected to, and whether it got more than
// a greeting.
func spoken(out string) (connections int, gained []string) {
	for line := range strings.Lines(out) {
		if text, ok := strings.CutPrefix(line, "connection: "); ok {
			connections++
			if text != "nothing\n" && text != "handshake false, 0 certificates, 0 bytes\n" {
				gained = append(gained, strings.TrimSpace(text))
			}
		}
	}
	return connections, gained
}
