//go:build unix

package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

// nobody is the other user.
const nobody = 65534

// asNobody runs a process as the other user, which takes root.
func asNobody(t testing.TB) func(*exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to play another user")
	}
	return func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}

// play is a process's main in a role. What it prints is what the test waits for; it ends when its stdin does.
func play(role string, args []string) int {
	if err := roles[role](args); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

var roles = map[string]func([]string) error{
	"opendir": func(a []string) error {
		_, err := OpenDir(a[0])
		fmt.Println("opened", err)
		return nil
	},
	"umask": func(a []string) error {
		mask, err := strconv.ParseUint(a[0], 8, 32)
		if err != nil {
			return err
		}
		syscall.Umask(int(mask))
		d, err := OpenDir(a[1])
		if err != nil {
			return err
		}
		lock, err := TryAcquire(d.File("l"))
		if err != nil {
			return err
		}
		l, err := Listen(d.File("s"))
		if err != nil {
			return err
		}
		for _, path := range []string{d.Path(), lock.Path(), l.Path()} {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			fmt.Printf("%#o ", info.Mode().Perm())
		}
		fmt.Println()
		return errors.Join(l.Close(), lock.Release())
	},
	"lock": func(a []string) error {
		l, err := Acquire(context.Background(), a[0])
		if err != nil {
			return err
		}
		fmt.Println("held")
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			return err
		}
		return l.Release()
	},
	"trylock": func(a []string) error {
		_, err := TryAcquire(a[0])
		fmt.Println("tried", err)
		return nil
	},
	"serve": func(a []string) error {
		lock, err := Acquire(context.Background(), a[0]+".lock")
		if err != nil {
			return err
		}
		l, err := Listen(a[0])
		if err != nil {
			return err
		}
		go servePID(l)
		if len(a) > 1 { // a mode
			mode, err := strconv.ParseUint(a[1], 8, 32)
			if err != nil {
				return err
			}
			if err := os.Chmod(a[0], os.FileMode(mode)); err != nil {
				return err
			}
		}
		fmt.Println("serving")
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			return err
		}
		return errors.Join(l.Close(), lock.Release())
	},
	"race": playRace,
	// connects, and says how much it could read
	"connect": func(a []string) error {
		c, err := net.Dial("unix", a[0])
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = io.WriteString(c, "hello\n") // it may be closed already
		b, rerr := io.ReadAll(c)
		fmt.Printf("read %d bytes, ended %t\n", len(b), rerr == nil || errors.Is(rerr, syscall.ECONNRESET))
		return nil
	},
	"dial": func(a []string) error {
		c, err := Dial(context.Background(), a[0])
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		fmt.Printf("served %q\n", b)
		return err
	},
	// connects and goes; a child of it keeps the connection, as whoever the second argument says
	"leave": func(a []string) error {
		c, err := net.Dial("unix", a[0])
		if err != nil {
			return err
		}
		f, err := c.(*net.UnixConn).File()
		if err != nil {
			return err
		}
		uid, err := strconv.Atoi(a[1])
		if err != nil {
			return err
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{roleVariable + "=kept"}
		cmd.ExtraFiles = []*os.File{f}
		if uid != os.Geteuid() {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Println(os.Getpid())
		return nil
	},
	"kept": func([]string) error {
		f := os.NewFile(3, "connection")
		if _, err := io.WriteString(f, "kept\n"); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, f)
		return err
	},
	"hungry": playHungry,
	"openca": func(a []string) error {
		d, err := OpenDir(a[0])
		if err != nil {
			return err
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		ca, err := OpenAuthority(d, AuthorityOptions{})
		if err != nil {
			return err
		}
		fmt.Printf("%q\n", ca.CertificatePEM())
		return nil
	},
}

// servePID tells every client who serves it.
func servePID(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintln(c, os.Getpid())
		_ = c.Close()
	}
}

// playRace is one of many starters: use the proxy that serves, or become it. It says who serves it.
func playRace(a []string) error {
	path, in := a[0], bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := in.ReadString('\n'); err != nil { // all at once
		return err
	}
	starting, err := Acquire(context.Background(), path+".start")
	if err != nil {
		return err
	}
	if _, err := askPID(path); err != nil {
		life, err := TryAcquire(path + ".lock")
		if err != nil {
			return err
		}
		defer life.Release()
		l, err := Listen(path)
		if err != nil {
			return err
		}
		defer l.Close()
		go servePID(l)
		fmt.Println("owner")
	}
	if err := starting.Release(); err != nil {
		return err
	}
	who, err := askPID(path)
	if err != nil {
		return err
	}
	fmt.Println("served by", who)
	_, err = in.ReadString('\n') // an owner serves until all have been
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

func askPID(path string) (string, error) {
	c, err := Dial(context.Background(), path)
	if err != nil {
		return "", err
	}
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	return line, err
}

// playHungry serves HTTP after it has used up its descriptors, and frees them when told to.
func playHungry(a []string) error {
	limit := syscall.Rlimit{Cur: 64, Max: 64}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	var hoard []*os.File
	log := slog.New(slog.NewTextHandler(stdoutMessages{}, nil))
	l, err := ListenConfig{Logger: log}.Listen(a[0])
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fed") })}
	ended := make(chan error, 1)
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil {
			return err
		}
		hoard = append(hoard, f)
	}
	fmt.Println("full")
	go func() { ended <- srv.Serve(l) }()
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	for _, f := range hoard {
		_ = f.Close()
	}
	_, _ = in.ReadString('\n')
	select {
	case err := <-ended:
		return fmt.Errorf("server ended: %w", err)
	default:
	}
	return srv.Close()
}

// stdoutMessages prints that something was logged.
type stdoutMessages struct{}

func (stdoutMessages) Write(b []byte) (int, error) {
	fmt.Println("logged")
	return len(b), nil
}
