package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/systemd"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// Command is the hidden command by which the plugin runs itself as the daemon.
const Command = "daemon"

// An order is what the plugin tells the daemon, over its standard input: the
// command line is open to every user of the machine.
type order struct {
	ID     string
	Life   string
	Places Places
	Config *config.Config
	PIN    []byte
	Ask    Ask // the first caller's: a proxy that cannot serve it does not start
}

// A greeting is the daemon's one line back, over its standard output.
type greeting struct {
	Ready bool   `json:"ready,omitempty"`
	Error string `json:"error,omitempty"`
}

// maxLog is the size from which a log is set aside when a daemon starts.
const maxLog = 10 << 20

func logPath(c *config.Config, p Places, id string) string {
	if c.LogFile != "" {
		return c.LogFile
	}
	return p.Log(id)
}

// openLog opens a daemon's log for appending, for this user alone.
func openLog(path string) (*os.File, error) {
	if fi, err := os.Lstat(path); err == nil {
		if !fi.Mode().IsRegular() && fi.Mode()&os.ModeCharDevice == 0 {
			return nil, fmt.Errorf("log file %s is not a regular file; name another with --log-file", path)
		}
		if fi.Size() > maxLog {
			_ = os.Rename(path, path+".1") // an old log that stays is only large
		}
	}
	// A link put there since, in a directory of everybody, is not followed.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|noFollow, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w; name another with --log-file", err)
	}
	if problem := whoseLog(f); problem != "" {
		_ = f.Close()
		return nil, fmt.Errorf("log file %s %s; name another with --log-file, in a directory of your own", path, problem)
	}
	return f, nil
}

// openDaemonLog opens the log of a daemon, in the state directory where the
// configuration names none.
func openDaemonLog(c *config.Config, p Places, id string) (*os.File, error) {
	path := logPath(c, p, id)
	if c.LogFile == "" {
		if _, err := p.open(filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	return openLog(path)
}

// spawn starts the daemon and returns once its listeners accept, or with its own
// words about why they do not.
func spawn(ctx context.Context, o *order, environ []string) error {
	log, err := openDaemonLog(o.Config, o.Places, o.ID)
	if err != nil {
		return err
	}
	defer log.Close()
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return background(ctx, Command, data, log, environ)
}

// background runs a hidden command of this program as a daemon and returns once
// that has greeted. data is its standard input, log its standard error.
func background(ctx context.Context, command string, data []byte, log *os.File, environ []string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the execproxy binary: %w", err)
	}
	// What we inherited, the parent's lock first of all, must not live on in the
	// daemon: it would never come free.
	if err := shutInherited(); err != nil {
		return fmt.Errorf("closing inherited descriptors: %w", err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(exe, command)
	cmd.Dir = string(filepath.Separator)
	cmd.Env = systemd.Forget(without(environ, clientauthentication.InfoVariable)) // a client may be a service
	cmd.Stdin = bytes.NewReader(data)
	cmd.Stdout = in
	cmd.Stderr = log
	cmd.SysProcAttr = detached()
	if err := cmd.Start(); err != nil {
		in.Close()
		return fmt.Errorf("starting the proxy: %w", err)
	}
	in.Close()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }() // ends with the daemon, or with this process
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill(); out.Close() })
	line, err := bufio.NewReader(io.LimitReader(out, 64<<10)).ReadBytes('\n')
	if !stop() {
		return fmt.Errorf("the proxy was not ready within %v; its log is %s", startTimeout, log.Name())
	}
	var g greeting
	switch {
	case err != nil || json.Unmarshal(line, &g) != nil:
		select {
		case err = <-exited:
		case <-ctx.Done(): // it lives and speaks another language
			_ = cmd.Process.Kill()
			err = ctx.Err()
		}
		return fmt.Errorf("the proxy ended before it was ready (%v); its log is %s", err, log.Name())
	case !g.Ready:
		return errors.New(g.Error)
	}
	return nil
}

// without is environ less one variable.
func without(environ []string, name string) []string {
	out := make([]string, 0, len(environ))
	for _, e := range environ {
		if !strings.HasPrefix(e, name+"=") {
			out = append(out, e)
		}
	}
	return out
}

// Detached is the daemon's process: it reads its order, runs, and tells the
// plugin over out how that went. Standard input and output are let go at that
// moment, so that nobody ever waits for a daemon's pipe to close.
func Detached(ctx context.Context, in io.Reader, out *os.File, version string) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil || o.Config == nil {
		return fmt.Errorf("%q is execproxy's own way to start its daemon; run `execproxy serve` for a proxy in the foreground", Command)
	}
	greet := func(g greeting) error { return greetOver(out, g) }
	ctx, hurry, stop := Signals(ctx)
	defer stop()
	err := Run(ctx, o.Config, Options{
		ID: o.ID, Life: o.Life, Idle: o.Config.IdleTimeout, Places: o.Places, Environ: os.Environ(), PIN: o.PIN, Credential: o.Ask.Credential,
		Sockets: []string{o.Places.Socket(o.ID)}, Version: version, LogWriter: os.Stderr, Hurry: hurry,
		Ready: func(d *Daemon) error {
			if _, err := d.document(ctx, o.Ask); err != nil {
				return err
			}
			// A plugin that was killed meanwhile takes nothing with it: others may
			// wait for this proxy, and the lock or the idle time ends it.
			if err := greet(greeting{Ready: true}); err != nil {
				d.log.Warn("the plugin that started this proxy is gone", "error", err)
			}
			return nil
		},
	})
	var early *StartError
	if errors.As(err, &early) {
		return errors.Join(err, greet(greeting{Error: err.Error()}))
	}
	return err
}

// greetOver sends the greeting and lets go of standard input and output.
func greetOver(out *os.File, g greeting) error {
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, err = out.Write(append(data, '\n'))
	if e := nullStdio(); err == nil {
		err = e
	}
	return err
}
