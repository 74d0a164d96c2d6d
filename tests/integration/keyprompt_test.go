//go:build linux

package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is a pseudo-terminal that a program has for its own.
type terminal struct {
	t      *testing.T
	master *os.File
	shown  *lines
	done   sync.WaitGroup
}

// onTerminal runs a program in this home with a terminal of its own, as a user
// does, and returns both.
func (h *home) onTerminal(args ...string) (*terminal, func() int) {
	h.t.Helper()
	master, slave, err := openTerminal()
	must(h.t, err)
	defer slave.Close()
	tty := &terminal{t: h.t, master: master, shown: newLines()}
	cmd := h.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(h.t, cmd.Start())
	tty.done.Go(func() {
		_, _ = io.Copy(tty.shown, tty.master) // ends with an error when nobody has the terminal any more
		tty.shown.close()
	})
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = tty.master.Close()
		tty.done.Wait()
	})
	return tty, func() int {
		h.t.Helper()
		timer := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		err := cmd.Wait()
		return exitCode(h.t, err)
	}
}

// openTerminal returns both ends of a new terminal: ours, and a program's.
func openTerminal() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("/dev/ptmx: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// setSize changes the size of a terminal, whoever closes it meanwhile.
func setSize(master *os.File, rows, columns uint16) error {
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
	return errors.Join(err, failed)
}

func (tty *terminal) types(text string) {
	tty.t.Helper()
	_, err := io.WriteString(tty.master, text)
	must(tty.t, err)
}

// TestPINTyped: without any source the plugin asks on the terminal, once; the
// proxy keeps the PIN as long as it lives, and the next kubectl asks nobody.
func TestPINTyped(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	hsm, _ := h.softHSM("execproxy", "pin-2718")
	shim := h.shim(hsm.Module)
	flags := h.certified("pkcs11:token=execproxy;object=me", "--pkcs11-module", shim.Module, "--pin-source", h.file("pin", "pin-2718\n"))
	for i, f := range flags { // from now on nobody tells the PIN
		if f == "--pin-source" {
			flags = append(flags[:i:i], flags[i+2:]...)
			break
		}
	}
	cert, helper := h.user("helper", "dev")
	kc := h.proxied(append([]string{"--kubeconfig", h.kubeconfig("plain", suite.cluster.API.URL, cert, helper), "--auth", "mtls", "--renew", "off"}, flags...)...)
	before, err := shim.Calls("C_Login")
	must(t, err)

	// Nobody is there to ask.
	if r := h.kubectl(kc, "get", "namespaces"); r.code == 0 || !strings.Contains(r.stderr, "pin-source") {
		t.Errorf("without a terminal: %s", r)
	}
	tty, wait := h.onTerminal(suite.kubectl, "--kubeconfig="+kc, "auth", "whoami")
	tty.shown.await(t, "PIN of token execproxy")
	tty.types("pin-2718\n")
	tty.shown.await(t, "jane")
	if code := wait(); code != 0 {
		t.Fatalf("kubectl ended with %d: %s", code, tty.shown)
	}
	if shown := tty.shown.String(); strings.Contains(shown, "pin-2718") || strings.Count(shown, "PIN of token") != 1 {
		t.Errorf("the terminal shows:\n%s", shown)
	}
	if got := whoami(t, h, kc); got != "jane" { // no terminal
		t.Errorf("the next kubectl: %q", got)
	}
	if n, err := shim.Calls("C_Login"); err != nil || n-before != 1 {
		t.Errorf("%d logins, %v; want 1", n-before, err)
	}
	h.execproxy("stop", "--all").ok(t)

	// kubectl runs its plugin again and again: a wrong PIN is asked for once.
	before, err = shim.Calls("C_Login")
	must(t, err)
	must(t, os.RemoveAll(h.path("home/.kube/cache")))
	tty, wait = h.onTerminal(suite.kubectl, "--kubeconfig="+kc, "get", "namespaces")
	tty.shown.await(t, "PIN of token execproxy")
	tty.types("bad-2718\n")
	if code := wait(); code == 0 || strings.Count(tty.shown.String(), "PIN of token execproxy (") > 1 {
		t.Errorf("kubectl ended with %d:\n%s", code, tty.shown)
	}
	if n, err := shim.Calls("C_Login"); err != nil || n-before != 1 {
		t.Errorf("%d logins with a wrong PIN, %v; want 1", n-before, err)
	}

	// A wrong one is tried once, and nothing keeps running.
	tty, wait = h.onTerminal(h.bin, "key", "show", "--key", "pkcs11:token=execproxy;object=me", "--pkcs11-module", shim.Module)
	tty.shown.await(t, "PIN of token execproxy")
	tty.types("bad-2718\n")
	tty.shown.await(t, "the PIN was refused")
	if code := wait(); code != 1 || strings.Contains(tty.shown.String(), "bad-2718") {
		t.Errorf("a wrong PIN: exit code %d\n%s", code, tty.shown)
	}
	// Ctrl-C at the prompt.
	tty, wait = h.onTerminal(h.bin, "key", "show", "--key", "pkcs11:token=execproxy;object=me", "--pkcs11-module", shim.Module)
	tty.shown.await(t, "PIN of token execproxy")
	tty.types("\x03")
	if code := wait(); code == 0 {
		t.Errorf("Ctrl-C at the prompt: exit code %d\n%s", code, tty.shown)
	}
}
