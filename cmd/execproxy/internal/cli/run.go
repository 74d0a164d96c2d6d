package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
)

// runRun runs a client through a proxy that lives exactly as long.
func runRun(ctx context.Context, w *world, o *options) error {
	if len(o.operands) == 0 {
		return usagef("run needs a command: execproxy run -- kubectl get pods")
	}
	s, err := o.loadSource(w)
	if err != nil {
		return err
	}
	p, err := w.places()
	if err != nil {
		return err
	}
	// Looked up first: a mistyped command needs no proxy.
	path, err := exec.LookPath(o.operands[0])
	if err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EISDIR) {
			fmt.Fprintf(w.stderr, "execproxy: %s: not executable\n", o.operands[0])
			return exitError(126) // both as a shell
		}
		fmt.Fprintf(w.stderr, "execproxy: %s: command not found\n", o.operands[0])
		return exitError(127)
	}
	c := s.config
	c.Listen = []string{"https://127.0.0.1:0"}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	code := -1
	ready := func(d *daemon.Daemon) error {
		dir, err := d.Scratch()
		if err != nil {
			return err
		}
		file := filepath.Join(dir, "kubeconfig")
		if _, err := writeKubeconfig(file, s, d); err != nil {
			return err
		}
		child := exec.Command(path, o.operands[1:]...)
		child.Args[0] = o.operands[0]
		child.Stdin, child.Stdout, child.Stderr = w.stdin, w.stdout, w.stderr
		child.Env = append(childEnviron(w.environ), "KUBECONFIG="+file)
		// Before the child is there: a signal that comes now is the child's too.
		forward, stop := catchSignals()
		if err := child.Start(); err != nil {
			stop()
			return fmt.Errorf("starting %s: %w", o.operands[0], err)
		}
		forward(child.Process)
		d.Go(func() {
			defer cancel()
			defer stop()
			// A proxy that was stopped, or failed, takes its client along.
			ended := make(chan struct{})
			var watch sync.WaitGroup
			watch.Go(func() {
				select {
				case <-d.Ending():
					terminate(child.Process)
				case <-ended:
				}
			})
			code = exitCode(child.Wait(), child.ProcessState)
			close(ended)
			watch.Wait()
		})
		return nil
	}
	if err := daemon.Private(ctx, c, p, w.environ, w.version, w.stderr, ready); err != nil {
		return err
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// terminate asks a process to end; a system without signals ends it.
func terminate(p *os.Process) {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		_ = p.Kill()
	}
}

// childEnviron is the environment less what would make the child go around the
// proxy or take itself for a plugin.
func childEnviron(environ []string) []string {
	out := make([]string, 0, len(environ)+1)
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if name == "KUBECONFIG" || name == "KUBERNETES_EXEC_INFO" {
			continue
		}
		out = append(out, e)
	}
	return out
}

// exitCode is the child's, or 128 and the signal that ended it, as shells say.
func exitCode(err error, s *os.ProcessState) int {
	if err == nil {
		return 0
	}
	if s == nil {
		return exitFailure
	}
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	if c := s.ExitCode(); c >= 0 {
		return c
	}
	return exitFailure
}

// catchSignals takes the signals that are the child's. They are passed on once
// forward has named it. What a terminal sends, it sends to the child as well, so
// those are only kept from ending us.
func catchSignals() (forward func(*os.Process), stop func()) {
	fromTerminal := map[os.Signal]bool{}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		fromTerminal[os.Interrupt] = true
		fromTerminal[syscall.SIGQUIT] = true
	}
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, forwarded...)
	var relay sync.WaitGroup
	forward = func(p *os.Process) {
		relay.Go(func() {
			for sig := range ch {
				if !fromTerminal[sig] {
					if err := p.Signal(sig); errors.Is(err, os.ErrProcessDone) {
						return
					}
				}
			}
		})
	}
	return forward, func() { signal.Stop(ch); close(ch); relay.Wait() }
}
