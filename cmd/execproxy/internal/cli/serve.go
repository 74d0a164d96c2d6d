package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
)

// runServe is the proxy in the foreground.
func runServe(ctx context.Context, w *world, o *options) error {
	if err := o.noOperands(); err != nil {
		return err
	}
	s, err := o.loadSource(w)
	if err != nil {
		return err
	}
	c := s.config
	p, err := w.places()
	if err != nil {
		return err
	}
	if c.KubeconfigOut != "" && !listensLoopback(c) {
		c.Listen = append(c.Listen, "https://127.0.0.1:0")
	}
	ready := func(d *daemon.Daemon) error {
		if c.KubeconfigOut == "" {
			return nil
		}
		return writeKubeconfig(c.KubeconfigOut, s, d)
	}
	err = daemon.Serve(ctx, c, p, w.environ, w.version, w.stderr, ready)
	if c.KubeconfigOut != "" && err == nil {
		_ = os.Remove(c.KubeconfigOut) // its pair opens nothing any more
	}
	return err
}

func listensLoopback(c *config.Config) bool {
	for _, l := range c.Listen {
		if a, err := config.ParseListen(l); err == nil && a.Network == "tcp" {
			return true
		}
	}
	return false
}

// writeKubeconfig writes a kubeconfig that works as it is, whole or not at all,
// readable for this user alone.
func writeKubeconfig(path string, s *source, d *daemon.Daemon) error {
	addr := d.Loopback()
	if addr == "" {
		return errors.New("a kubeconfig needs a loopback listener; add --listen https://127.0.0.1:0")
	}
	ca, cert, key, err := d.LoopbackSession()
	if err != nil {
		return err
	}
	data, err := plainKubeconfig(s, addr, ca, cert, key)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".execproxy-*") // 0600
	if err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	defer os.Remove(f.Name()) // gone already when all went well
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing the kubeconfig %s: %w", path, err)
	}
	return nil
}

// runDaemon is the detached proxy's own process.
func runDaemon(ctx context.Context, w *world, _ *options) error {
	in, ok := w.stdin.(*os.File)
	out, ok2 := w.stdout.(*os.File)
	if !ok || !ok2 {
		return errors.New("the daemon needs a real standard input and output")
	}
	return daemon.Detached(ctx, in, out, w.version)
}
