// Package token runs what keys live in, for tests: SoftHSM tokens, p11-kit's
// server before one, software TPMs, and a PKCS#11 module that fails as told.
//
// What it makes is below a directory of the caller's, which must be short,
// because there are sockets in it. The programs are Debian's; one that is not
// installed is a [*MissingError] with the name of its package.
package token

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// patience is how long a program of theirs may take, and one of ours to answer.
const patience = 20 * time.Second

// packages are the Debian packages of programs and libraries that have another name.
var packages = map[string]string{
	"softhsm2-util":     "softhsm2",
	"libsofthsm2.so":    "softhsm2",
	"pkcs11-tool":       "opensc",
	"p11-kit-client.so": "p11-kit-modules",
}

// A MissingError is a program or library that is not installed.
type MissingError struct{ What, Package string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("no %s on this machine: apt-get install %s", e.What, e.Package)
}

// program returns the path of a program, with those in sbin, which PATH may lack.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	return library(name, "/usr/sbin/", "/sbin/")
}

// library returns the first file of this name whose directory matches one of the patterns.
func library(name string, dirs ...string) (string, error) {
	for _, dir := range dirs {
		if found, _ := filepath.Glob(dir + name); len(found) > 0 {
			return found[0], nil
		}
	}
	deb := name
	if strings.HasPrefix(name, "tpm2_") {
		deb = "tpm2-tools"
	} else if packages[name] != "" {
		deb = packages[name]
	}
	return "", &MissingError{name, deb}
}

// run runs a program to its end and returns what it printed on stdout.
func run(ctx context.Context, env map[string]string, args ...string) ([]byte, error) {
	path, err := program(args[0])
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	cmd.Env = environ(env)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := proc.StartCmd(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%q: %w\n%s%s", args, errors.Join(err, ctx.Err()), stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// environ is our own environment with env in it.
func environ(env map[string]string) []string {
	out := os.Environ()
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	return out
}

// checkSocket refuses what a socket's address has no room for.
func checkSocket(path string) error {
	if room := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > room {
		return fmt.Errorf("socket %s: %d bytes, there is room for %d: take a shorter directory", path, len(path), room)
	}
	return nil
}

// accepts tells whether somebody listens on the socket.
func accepts(ctx context.Context, path string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	return conn.Close()
}

// field returns what follows a name and a colon in a line of a tool's output.
func field(line, name string) (string, bool) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
	rest, colon := strings.CutPrefix(strings.TrimSpace(rest), ":")
	return strings.TrimSpace(rest), ok && colon
}
