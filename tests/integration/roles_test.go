//go:build linux

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/execproxy/execproxy/proxy/client"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// What the test binary plays when it is started again with roleVariable set.
const (
	roleClient  = "client"  // a Kubernetes client on our library, until it is killed
	roleConnect = "connect" // somebody who connects to the socket PATH
	roleProbe   = "probe"   // somebody who looks into the process PID
)

// argumentVariable is the role's argument.
const argumentVariable = "EXECPROXY_TEST_ARGUMENT"

// role prepares the test binary to play another process in this home.
func (h *home) role(role, argument string) *exec.Cmd {
	h.t.Helper()
	self, err := self()
	must(h.t, err)
	cmd := h.command(self)
	cmd.Env = append(cmd.Env, roleVariable+"="+role, argumentVariable+"="+argument)
	return cmd
}

// self puts the test binary where other users may execute it.
var self = sync.OnceValues(func() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(exe)
	if err != nil {
		return "", err
	}
	path := filepath.Join(suite.dir, "self")
	// A program that another test starts meanwhile would inherit the file open for
	// writing, and nobody could execute it then.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return path, os.WriteFile(path, data, 0o755)
})

func play(role string) int {
	arg := os.Getenv(argumentVariable)
	var err error
	switch role {
	case roleClient:
		err = playClient(arg)
	case roleConnect:
		err = playConnect(arg)
	case roleProbe:
		err = playProbe(arg)
	case roleKnock:
		err = playKnock(arg)
	case roleSquat:
		err = playSquat(arg)
	case roleRace:
		err = playRace(arg)
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		return 1
	}
	return 0
}

// clientRole is the argument of roleClient.
type clientRole struct {
	Command, Server string
	CA              []byte
	Config          json.RawMessage
}

func (c clientRole) options() client.Options {
	return client.Options{
		Command: c.Command, Args: []string{"exec"}, Env: os.Environ(),
		Cluster: clientauthentication.Cluster{Server: c.Server, CertificateAuthorityData: c.CA, Config: c.Config},
		Stderr:  os.Stderr,
	}
}

// playClient gets something, opens a watch, prints the proxy's socket and
// stays until it is killed.
func playClient(arg string) error {
	var c clientRole
	if err := json.Unmarshal([]byte(arg), &c); err != nil {
		return err
	}
	p, err := client.New(c.options())
	if err != nil {
		return err
	}
	hc := &http.Client{Transport: p.RoundTripper()}
	resp, err := hc.Get(c.Server + "/version")
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /version: %s", resp.Status)
	}
	watch, err := hc.Get(c.Server + "/api/v1/namespaces/default/configmaps?watch=true&allowWatchBookmarks=true")
	if err != nil {
		return err
	}
	defer func() { _ = watch.Body.Close() }()
	credential, err := p.Credential(context.Background())
	if err != nil {
		return err
	}
	socket, err := credential.Status.ProxyConfig.SocketPath()
	if err != nil {
		return err
	}
	fmt.Printf("ready %s\n", socket)
	_, err = io.Copy(io.Discard, watch.Body)
	return err
}

// playConnect says whether a single byte, or even a refusal in TLS, comes from
// the socket for an offered handshake.
func playConnect(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	// A request in the clear would be answered by any TLS server, with an alert.
	_, _ = io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
	n, err := conn.Read(make([]byte, 512))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the connection stays open: %w", err)
	}
	fmt.Printf("%d bytes\n", n)
	return nil
}

// playProbe prints, for each way into another process, whether it is denied.
func playProbe(arg string) error {
	pid, err := strconv.Atoi(arg)
	if err != nil {
		return err
	}
	answer := map[string]string{}
	for _, name := range []string{"mem", "environ", "fd", "maps"} {
		answer[name] = "open"
		f, err := os.Open("/proc/" + arg + "/" + name)
		if err == nil {
			if name == "fd" {
				_, err = f.ReadDir(-1)
			} else if name != "mem" { // whoever may open it may read it
				_, err = f.Read(make([]byte, 64))
			}
			_ = f.Close()
		}
		if errors.Is(err, os.ErrPermission) {
			answer[name] = "denied"
		} else if err != nil && err != io.EOF {
			return err
		}
	}
	for way, err := range map[string]error{"process_vm_readv": readMemory(pid), "pidfd_getfd": stealDescriptor(pid)} {
		answer[way] = "open"
		if errors.Is(err, os.ErrPermission) {
			answer[way] = "denied"
		} else if err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
	}
	runtime.LockOSThread() // a tracer is a thread
	answer["ptrace"] = "open"
	if err := syscall.PtraceAttach(pid); errors.Is(err, os.ErrPermission) {
		answer["ptrace"] = "denied"
	} else if err != nil {
		return err
	} else {
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		_ = syscall.PtraceDetach(pid)
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}
