//go:build unix

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// The test binary plays the processes that this package becomes.
const role = "EXECPROXY_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "detached":
		if err := Detached(context.Background(), os.Stdin, os.Stdout, "test"); err != nil {
			os.Exit(1)
		}
	case "service":
		if err := playService(); err != nil {
			os.Exit(1)
		}
	case "foreground":
		var o order
		if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
			os.Exit(3)
		}
		p := &Plugin{Config: o.Config, Places: o.Places, Environ: os.Environ(), Ask: o.Ask, Version: "test"}
		err := p.Foreground(context.Background(), func(*clientauthentication.Status) error {
			_, err := os.Stdout.WriteString("answer\n")
			return err
		})
		if err != nil {
			os.Exit(1)
		}
	}
}

// play starts this binary in a role, with its order.
func play(t *testing.T, as string, o order, stdout *os.File) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"="+as)
	cmd.Stdin, cmd.Stdout = bytes.NewReader(data), stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// exits waits for a process and says whether it ended well.
func exits(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("it did not end")
	}
}

// one waits for the one proxy of p.
func one(t *testing.T, p Places) Status {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if list := Running(t.Context(), p); len(list) == 1 {
			return list[0]
		}
	}
	t.Fatal("no proxy is running")
	return Status{}
}

// A plugin that was killed while the daemon started takes it not with it: others
// may be waiting, and the lock will end it, cleanly.
func TestDaemonOutlivesItsPlugin(t *testing.T) {
	_, c, p := playground(t)
	lock := hold(t)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := play(t, "detached", order{ID: "cafe", Life: lifeLock, Places: p, Config: c, Ask: Ask{LockFile: lock.Path()}}, in)
	in.Close()
	out.Close()
	one(t, p)
	if _, err := newController(p.Socket("cafe")).document(t.Context(), Ask{LockFile: lock.Path()}); err != nil {
		t.Error(err)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	exits(t, cmd)
	if left, err := os.ReadDir(p.Runtime); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Ctrl-C reaches the whole group of the terminal. The client may live on, and
// then so does its proxy.
func TestForegroundOutlivesInterrupt(t *testing.T) {
	_, c, p := playground(t)
	lock := hold(t)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := play(t, "foreground", order{Places: p, Config: c, Ask: Ask{LockFile: lock.Path()}}, in)
	in.Close()
	if n, err := out.Read(make([]byte, 64)); n == 0 {
		t.Fatal(err)
	}
	// The plugin lets go of our pipe once it has answered.
	if n, err := out.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatal("more than an answer")
	}
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	s := one(t, p)
	if _, err := newController(p.Socket(s.ID)).document(t.Context(), Ask{LockFile: lock.Path()}); err != nil {
		t.Error(err)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	exits(t, cmd)
	if left, err := os.ReadDir(p.Runtime); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A proxy in another pid namespace says a number that here is somebody else's.
func TestStopGoesByTheSocket(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there are no pid namespaces")
	}
	_, c, p := playground(t)
	lock := hold(t)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	defer in.Close()
	cmd := play(t, "foreground", order{Config: c, Places: p, Ask: Ask{LockFile: lock.Path()}}, in)
	s := one(t, p)
	s.PID = os.Getpid()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := Stop(ctx, p, s); err != nil {
		t.Error(err)
	}
	exits(t, cmd)
}
