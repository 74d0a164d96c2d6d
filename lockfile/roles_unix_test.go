//go:build unix

package lockfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

func playUnix(role, path string) error {
	switch role {
	case "fcntl": // holds a lock of the kind that flock does not see
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}); err != nil {
			return err
		}
		say("held")
		untilEOF()
		return nil

	case "share": // holds a lock, and so does its child, by the descriptor it inherits
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			return err
		}
		say("held")
		return child(f)

	case "create": // holds a lock made by Create; its child must not
		l, err := Create(path)
		if err != nil {
			return err
		}
		say("held")
		return errors.Join(child(), l.Unlock())

	case "unshared": // holds a shared lock only
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
			return err
		}
		say("held")
		untilEOF()
		return nil

	case "wait": // is the proxy
		if err := undump(); err != nil {
			return err
		}
		p, err := Open(path)
		if err != nil {
			return err
		}
		defer p.Close()
		say("waiting")
		return p.Wait(context.Background())
	}
	return fmt.Errorf("no such role")
}

// child runs a process that knows nothing of locks, on this one's stdin and stdout.
func child(inherited ...*os.File) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"=idle")
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, inherited
	return cmd.Run()
}
