package pin

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pty is a terminal, and the user before it.
type pty struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	was    unix.Termios
	shown  string
}

func newPty(t *testing.T) *pty {
	t.Helper()
	// Non-blocking, so that reading can have a deadline.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	must(t, err)
	p := &pty{t: t, master: os.NewFile(uintptr(fd), "ptmx")}
	t.Cleanup(func() { p.master.Close() })
	must(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	must(t, err)
	p.slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	must(t, err)
	t.Cleanup(func() { p.slave.Close() })
	p.was = p.termios()
	if p.was.Lflag&unix.ECHO == 0 {
		t.Fatal("a new terminal does not echo")
	}
	return p
}

// start runs a role in a session of its own on the terminal.
func (p *pty) start(role, state string) *player {
	return start(p.t, role, "prompt", state, func(cmd *exec.Cmd) {
		cmd.ExtraFiles = []*os.File{p.slave}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	})
}

func (p *pty) termios() unix.Termios {
	p.t.Helper()
	t, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	must(p.t, err)
	return *t
}

// see waits until the terminal shows a text that it has not shown yet.
func (p *pty) see(text string) {
	p.t.Helper()
	buf := make([]byte, 1024)
	for from := len(p.shown); !strings.Contains(p.shown[from:], text); {
		must(p.t, p.master.SetReadDeadline(time.Now().Add(30*time.Second)))
		n, err := p.master.Read(buf)
		p.shown += string(buf[:n])
		if err != nil {
			p.t.Fatalf("terminal shows %q, want %q: %v", p.shown, text, err)
		}
	}
}

func (p *pty) write(text string) {
	p.t.Helper()
	_, err := p.master.WriteString(text)
	must(p.t, err)
}

func (p *pty) hidden() {
	p.t.Helper()
	if p.termios().Lflag&unix.ECHO != 0 {
		p.t.Error("the terminal echoes what is typed")
	}
}

// restored checks that the terminal is as it was, and that nothing of what was typed shows or
// waits for the shell.
func (p *pty) restored() {
	p.t.Helper()
	if now := p.termios(); now != p.was {
		p.t.Errorf("the terminal was left as %+v, was %+v", now, p.was)
	}
	hides(p.t, p.shown)
	p.write("next\n")
	p.see("next\r\n") // echoed
	buf := make([]byte, 100)
	must(p.t, p.slave.SetReadDeadline(time.Now().Add(30*time.Second)))
	n, err := p.slave.Read(buf)
	if string(buf[:n]) != "next\n" || err != nil {
		p.t.Errorf("the shell reads %q, %v", buf[:n], err)
	}
}

const question = what + ": "

func TestPrompt(t *testing.T) {
	tty := newPty(t)
	tty.write("typed ahead\n") // is no answer to what was not asked yet
	p := tty.start("home", t.TempDir())
	p.tell("secret")
	tty.see(question)
	tty.hidden()
	tty.write(canary + "x\x7f\n") // with a correction
	p.expect(`try "` + canary + `" human true`)
	tty.see("\r\n")
	if now := tty.termios(); now != tty.was {
		t.Error("the terminal is not restored")
	}
	p.tell("secret") // nobody is asked again
	p.expect(`try "` + canary + `" human true`)
	p.tell("refused")
	p.expect("told")
	p.tell("secret")
	tty.see(what + " (the last one was refused): ")
	tty.write(canary + "\n")
	p.expect("refused: " + what + ": the prompt was refused at ")
	p.tell("secret")
	tty.see("refused): ")
	tty.write("right\n")
	p.expect(`try "right" human true`)
	p.tell("accepted")
	p.expect("told")
	p.tell("secret")
	p.expect(`try "right" human false`) // this time nobody has typed it
	tty.see("\r\n")
	tty.restored()
	if got := strings.Count(tty.shown, what); got != 3 {
		t.Errorf("asked %d times: %q", got, tty.shown)
	}
}

func TestPromptEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*pty, *player)
		want string
	}{
		"Ctrl-C":         {func(tty *pty, _ *player) { tty.write(canary + "\x03") }, "interrupted: " + what + ": the prompt was interrupted"},
		"Ctrl-\\":        {func(tty *pty, _ *player) { tty.write(canary + "\x1c") }, "interrupted: "},
		"SIGTERM":        {func(tty *pty, p *player) { tty.write(canary); must(t, p.cmd.Process.Signal(syscall.SIGTERM)) }, "interrupted: "},
		"SIGHUP":         {func(tty *pty, p *player) { tty.write(canary); must(t, p.cmd.Process.Signal(syscall.SIGHUP)) }, "interrupted: "},
		"cancelled":      {func(tty *pty, p *player) { tty.write(canary); p.tell("") }, "interrupted: "},
		"Ctrl-D":         {func(tty *pty, _ *player) { tty.write("\x04") }, "error: " + what + ": the prompt was cancelled: nothing was typed"},
		"empty":          {func(tty *pty, _ *player) { tty.write("\n") }, "error: " + what + ": the prompt was cancelled: nothing was typed"},
		"arrow":          {func(tty *pty, _ *player) { tty.write(canary + "\x1b[D\n") }, "error: " + what + ": the prompt holds no PIN: a control key was typed"},
		"Ctrl-Z":         {func(tty *pty, _ *player) { tty.write(canary + "\x1a\n") }, "error: " + what + ": the prompt holds no PIN: a control key was typed"},
		"too long":       {func(tty *pty, _ *player) { tty.write(strings.Repeat(canary, 100) + "\n") }, "error: " + what + ": the prompt holds no PIN: it is longer"},
		"two bytes less": {func(tty *pty, _ *player) { tty.write(strings.Repeat("x", 257) + "\n") }, "error: " + what + ": the prompt holds no PIN: it is longer"},
	} {
		t.Run(name, func(t *testing.T) {
			tty := newPty(t)
			p := tty.start("cancelled", t.TempDir())
			tty.see(question)
			tty.hidden()
			c.end(tty, p)
			hides(t, p.expect(c.want))
			tty.see("\r\n")
			tty.restored()
		})
	}
}

// TestTwoPrompts: of two that ask on one terminal, one waits; echo stays off under it.
func TestTwoPrompts(t *testing.T) {
	tty := newPty(t)
	p := tty.start("two", t.TempDir())
	said := []string{p.next(), p.next(), p.next()}
	if !sameSet(said, []string{"ready", "ready", "waiting"}) {
		t.Fatalf("said %q", said)
	}
	for i, pin := range []string{"1111", "2222"} {
		tty.see(": ")
		if got := strings.Count(tty.shown, "PIN of "); got != i+1 {
			t.Fatalf("asked %d times: %q", got, tty.shown)
		}
		tty.hidden()
		tty.write(pin + "\n")
		p.expect(`try "` + pin + `"`)
	}
	tty.see("\r\n")
	tty.restored()
}

// TestNoTerminal: without a controlling terminal nobody is asked, whatever stdin is.
func TestNoTerminal(t *testing.T) {
	tty := newPty(t)
	p := start(t, "home", "prompt", t.TempDir(), func(cmd *exec.Cmd) {
		cmd.ExtraFiles = []*os.File{tty.slave}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	})
	p.tell("secret")
	p.expect("error: " + what + ": there is no terminal to ask on: run it from one, or name another source, with pin-source")
}

// sameSet tells whether two lists hold the same, in any order.
func sameSet(a, b []string) bool {
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
