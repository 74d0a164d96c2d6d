package token

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// P11Kit is a token behind a server of p11-kit's: one that can be pulled out and
// put back in.
type P11Kit struct {
	Module string // path of the PKCS#11 library that speaks to the server
	Socket string

	token *Token
	log   string
	proc  *proc.Process
}

// StartP11Kit serves the token on dir/p11.
func StartP11Kit(ctx context.Context, dir string, t *Token) (*P11Kit, error) {
	module, err := library("p11-kit-client.so", "/usr/lib/*/pkcs11/", "/usr/lib64/pkcs11/", "/usr/lib/pkcs11/")
	if err != nil {
		return nil, err
	}
	p := &P11Kit{Module: module, Socket: filepath.Join(dir, "p11"), token: t, log: filepath.Join(dir, "p11-kit.log")}
	if err := checkSocket(p.Socket); err != nil {
		return nil, err
	}
	return p, p.Start(ctx)
}

// Env is what programs that load Module need in their environment.
func (p *P11Kit) Env() map[string]string {
	return map[string]string{"P11_KIT_SERVER_ADDRESS": "unix:path=" + p.Socket}
}

// Start puts the token back in, after Kill.
func (p *P11Kit) Start(ctx context.Context) error {
	program, err := program("p11-kit")
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "server", "--foreground", "--provider", p.token.hsm.Module, "--name", p.Socket,
		"pkcs11:serial="+p.token.Serial)
	cmd.Env = environ(p.token.hsm.Env())
	if p.proc, err = proc.Launch("p11-kit server", p.log, cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.proc.Await(ctx, func(ctx context.Context) error { return accepts(ctx, p.Socket) })
}

// Kill pulls the token out: the server and its process for each client end as if
// by a power failure. The socket's file stays, deaf.
func (p *P11Kit) Kill() {
	// The clients' processes first, while they have a parent to bury them.
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		children := children(p.proc.PID())
		if len(children) == 0 {
			break
		}
		for _, pid := range children {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	p.proc.Kill()
}

// Stop ends it for good.
func (p *P11Kit) Stop() {
	p.Kill()
	_ = os.Remove(p.Socket)
}

// children returns the processes that pid is the parent of.
func children(pid int) (found []int) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	for _, child := range bytes.Fields(line) {
		if n, err := strconv.Atoi(string(child)); err == nil {
			found = append(found, n)
		}
	}
	return found
}
