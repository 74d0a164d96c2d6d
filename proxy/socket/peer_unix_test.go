//go:build unix

package socket

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A socket that anybody can connect to still serves nobody else.
func TestAnotherUserIsCut(t *testing.T) {
	as := asNobody(t)
	path := filepath.Join(tempDir(t), "s")
	log, lines := lineLog()
	l, err := ListenConfig{Logger: log}.Listen(path)
	must(t, err)
	must(t, os.Chmod(path, 0o666))
	done := make(chan struct{})
	go func() { defer close(done); servePID(l) }()

	start(t, nil, "connect", path).expect(fmt.Sprintf("read %d bytes, ended true", len(fmt.Sprintln(os.Getpid()))))
	const n = 5
	for range n {
		got := start(t, as, "connect", path).line()
		if !strings.HasPrefix(got, "read 0 bytes") || !strings.HasSuffix(got, "ended true") {
			t.Errorf("another user: %s", got)
		}
	}
	if got := l.Refused(); got != n {
		t.Errorf("counted %d refusals, want %d", got, n)
	}
	if line := await(t, lines); !strings.Contains(line, "uid=65534") || !strings.Contains(line, path) {
		t.Errorf("logged %q", line)
	}
	must(t, l.Close())
	<-done
}

// Root may speak to everybody's proxy; a user is not served by another user's.
func TestDialChecksWhoListens(t *testing.T) {
	as := asNobody(t)
	dir := tempDir(t)
	must(t, os.Chmod(dir, 0o777))

	theirs := filepath.Join(dir, "theirs")
	server := start(t, as, "serve", theirs)
	server.expect("serving")
	_, err := Dial(testContext(t), theirs)
	if pe, ok := err.(*PeerError); !ok || pe.UID != nobody || pe.Path != theirs {
		t.Errorf("dialled another user's socket: %v", err)
	}
	oneLine(t, err, "uid 65534", "directory of your own")
	start(t, as, "dial", theirs).expect(fmt.Sprintf("served %q", fmt.Sprintln(server.cmd.Process.Pid)))

	// The server is root's, whom a user must trust; but root's server does not serve users.
	ours := filepath.Join(dir, "ours")
	start(t, nil, "serve", ours, "0666").expect("serving")
	start(t, as, "dial", ours).expect(`served ""`)

	// The way root gets into a user's: a plain connection, which that user's listener must accept.
	start(t, nil, "connect", theirs).expect(fmt.Sprintf("read %d bytes, ended true", len(fmt.Sprintln(server.cmd.Process.Pid))))
}

// The peer connects and ends, a child keeps its connection: who connected decides, not who has that pid by now.
func TestPeerThatLeaves(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/self/exe")
	}
	as := asNobody(t)
	path := filepath.Join(tempDir(t), "s")
	l, err := Listen(path)
	must(t, err)
	defer l.Close()
	must(t, os.Chmod(path, 0o666))

	leave := func(p *proc) {
		t.Helper()
		p.expect(fmt.Sprint(p.cmd.Process.Pid))
		for range p.lines {
		}
		must(t, p.cmd.Wait())
	}
	leave(start(t, as, "leave", path, fmt.Sprint(nobody))) // in the backlog before the next, and cut
	for _, keeper := range []string{fmt.Sprint(os.Geteuid()), fmt.Sprint(nobody)} {
		leave(start(t, nil, "leave", path, keeper))
		c, err := l.Accept()
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(patience)))
		if uid, err := PeerUID(c); err != nil || uid != os.Geteuid() {
			t.Errorf("uid %d, %v", uid, err)
		}
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "kept\n" {
			t.Errorf("read %q, %v", line, err)
		}
		must(t, c.Close())
	}
	if l.Refused() != 1 {
		t.Errorf("refused %d, want 1", l.Refused())
	}
}

func TestPeerUIDOfOtherConnections(t *testing.T) {
	l, err := ListenLoopback("127.0.0.1:0")
	must(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	for _, c := range []net.Conn{c, a, tls.Client(c, &tls.Config{ServerName: "x", MinVersion: tls.VersionTLS12})} {
		if uid, err := PeerUID(c); err == nil || uid != -1 {
			t.Errorf("%T: uid %d, %v", c, uid, err)
		}
	}
	path := filepath.Join(tempDir(t), "s")
	ul, err := Listen(path)
	must(t, err)
	defer ul.Close()
	uc, err := Dial(testContext(t), path)
	must(t, err)
	if uid, err := PeerUID(tls.Client(uc, &tls.Config{ServerName: "x", MinVersion: tls.VersionTLS12})); err != nil || uid != os.Geteuid() {
		t.Errorf("under TLS: uid %d, %v", uid, err)
	}
	must(t, uc.Close())
	if uid, err := PeerUID(uc); err == nil || uid != -1 {
		t.Errorf("closed: uid %d, %v", uid, err)
	}
	_, _ = io.Copy(io.Discard, uc)
}
