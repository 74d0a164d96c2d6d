package token

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// SWTPM is a software TPM on a socket. It serves one client: while one is
// connected, all others wait, and so does Tool.
type SWTPM struct {
	Socket string

	dir  string
	proc *proc.Process
}

// StartSWTPM starts a new one in dir/tpm.
func StartSWTPM(ctx context.Context, dir string) (*SWTPM, error) {
	s := &SWTPM{dir: filepath.Join(dir, "tpm")}
	s.Socket = filepath.Join(s.dir, "s")
	if err := checkSocket(s.control()); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.path("state"), 0o700); err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

func (s *SWTPM) path(name string) string { return filepath.Join(s.dir, name) }
func (s *SWTPM) control() string         { return s.Socket + ".ctrl" }

// Start starts it again on the state it had, after Kill.
func (s *SWTPM) Start(ctx context.Context) error {
	program, err := program("swtpm")
	if err != nil {
		return err
	}
	s.forget()
	cmd := exec.Command(program, "socket", "--tpm2", "--tpmstate", "dir="+s.path("state"),
		"--server", "type=unixio,mode=0600,path="+s.Socket, "--ctrl", "type=unixio,mode=0600,path="+s.control(),
		"--flags", "not-need-init,startup-clear")
	if s.proc, err = proc.Launch("swtpm", s.path("log"), cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// A connection to Socket itself would be the one client.
	return s.proc.Await(ctx, func(ctx context.Context) error {
		if _, err := os.Stat(s.Socket); err != nil {
			return err
		}
		return accepts(ctx, s.control())
	})
}

// Kill ends it as a power failure would. What was not persistent is lost.
func (s *SWTPM) Kill() { s.proc.Kill() }

// Stop ends it for good.
func (s *SWTPM) Stop() {
	s.Kill()
	s.forget()
}

// forget removes the sockets, which it neither binds again nor takes with it.
func (s *SWTPM) forget() {
	_ = os.Remove(s.Socket)
	_ = os.Remove(s.control())
}

// TCTI is how the programs of tpm2-tools find it (TPM2TOOLS_TCTI); they use the control socket, too.
func (s *SWTPM) TCTI() string { return "swtpm:path=" + s.Socket }

// Tool runs a program of tpm2-tools. Objects that it leaves in the TPM's three
// slots are thrown out after it.
func (s *SWTPM) Tool(ctx context.Context, args ...string) ([]byte, error) {
	env := map[string]string{"TPM2TOOLS_TCTI": s.TCTI()}
	out, err := run(ctx, env, args...)
	if err != nil {
		return nil, err
	}
	_, err = run(ctx, env, "tpm2_flushcontext", "--transient-object")
	return out, err
}

// tools runs several of them; each is a line.
func (s *SWTPM) tools(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if _, err := s.Tool(ctx, strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

// create makes a key below the storage root key that TSS2 PEM files have for a
// parent; kind is tpm2_create's, as ecc256, ecc384 or rsa2048.
func (s *SWTPM) create(ctx context.Context, kind, password string) error {
	args := []string{
		"tpm2_create", "-Q", "-C", s.path("srk"), "-G", kind, "-u", s.path("pub"), "-r", s.path("priv"), "-c", s.path("key"),
		"-a", "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|sign",
	}
	if password != "" {
		args = append(args, "-p", password)
	}
	err := s.tools(ctx, "tpm2_createprimary -Q -C o -G ecc256:aes128cfb -c "+s.path("srk")+
		" -a fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|decrypt")
	if err != nil {
		return err
	}
	_, err = s.Tool(ctx, args...)
	return err
}

// GenerateKey makes a key at a persistent handle; see create for kind. The password may be empty.
func (s *SWTPM) GenerateKey(ctx context.Context, handle uint32, kind, password string) error {
	if err := s.create(ctx, kind, password); err != nil {
		return err
	}
	return s.tools(ctx, fmt.Sprintf("tpm2_evictcontrol -Q -C o -c %s 0x%08x", s.path("key"), handle))
}

// GenerateKeyFile makes a key in a TSS2 PRIVATE KEY file. What the file says of
// its password (emptyAuth) is false without one and true with one: that is how
// tpm2_encodeobject writes it.
func (s *SWTPM) GenerateKeyFile(ctx context.Context, path, kind, password string) error {
	if err := s.create(ctx, kind, password); err != nil {
		return err
	}
	args := []string{"tpm2_encodeobject", "-C", s.path("srk"), "-u", s.path("pub"), "-r", s.path("priv"), "-o", path}
	if password != "" {
		args = append(args, "-p")
	}
	if _, err := s.Tool(ctx, args...); err != nil {
		return err
	}
	return os.Chmod(path, 0o600)
}
