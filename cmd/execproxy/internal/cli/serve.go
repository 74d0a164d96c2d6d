package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

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
	if err := checkKubeconfigOut(c.KubeconfigOut); err != nil {
		return err
	}
	p, err := w.places()
	if err != nil {
		return err
	}
	ready := func(d *daemon.Daemon) error {
		if c.KubeconfigOut == "" {
			return nil
		}
		out := &kubeconfigFile{path: c.KubeconfigOut, write: func() ([]byte, error) { return writeKubeconfig(c.KubeconfigOut, s, d) }}
		if err := out.first(); err != nil {
			return err
		}
		if dir := filepath.Dir(c.KubeconfigOut); openToOthers(dir) {
			d.Warn(fmt.Sprintf("%s is writable by others, who can put a kubeconfig of theirs in the place of %s; chmod go-w it, or name another with --kubeconfig-out", dir, filepath.Base(c.KubeconfigOut)))
		}
		if !d.Activated() { // a client that reads it later starts the next proxy
			d.Cleanup(out.remove) // nobody answers there any more, until the next start
		}
		d.Go(func() {
			tick := time.NewTicker(time.Hour)
			defer tick.Stop()
			for {
				select {
				case <-d.Ending():
					return
				case <-tick.C:
				}
				if _, cert, _, err := d.LoopbackSession(); err != nil || bytes.Contains(out.data, encoded(cert)) {
					continue
				}
				if err := out.renew(); err != nil {
					d.Warn(err.Error())
				}
			}
		})
		return nil
	}
	reload := func() (*config.Config, error) {
		s, err := o.loadSource(w)
		if err != nil {
			return nil, err
		}
		return s.config, nil
	}
	h := daemon.Hooks{Ready: ready, Reload: reload}
	if c.KubeconfigOut != "" {
		// A client that has read the file must find the next proxy where it found this one.
		h.Loopback = func() (string, error) {
			return steadyAddress(daemon.SessionID(c, w.environ), func(string) bool { return false })
		}
	}
	return daemon.Serve(ctx, c, p, w.environ, w.version, w.stderr, h)
}

// A kubeconfigFile follows the session's pair, which may not live as long as a
// sidecar. A file that somebody else has put in its place, the next proxy for
// one, is left alone.
type kubeconfigFile struct {
	path  string
	write func() ([]byte, error)
	data  []byte // as we wrote it
}

func (k *kubeconfigFile) first() (err error) {
	k.data, err = k.write()
	return err
}

func (k *kubeconfigFile) ours() bool {
	// Where others may write, a FIFO could stand there, which is never read to its end.
	if fi, err := os.Lstat(k.path); err != nil || !fi.Mode().IsRegular() || fi.Size() != int64(len(k.data)) {
		return false
	}
	now, err := os.ReadFile(k.path)
	return err == nil && bytes.Equal(now, k.data)
}

func (k *kubeconfigFile) renew() error {
	if !k.ours() {
		return nil
	}
	data, err := k.write()
	if err == nil {
		k.data = data
	}
	return err
}

func (k *kubeconfigFile) remove() {
	if k.ours() {
		_ = os.Remove(k.path)
	}
}

// checkKubeconfigOut finds out before anything is served whether the file can be
// written where it is wanted.
func checkKubeconfigOut(path string) error {
	if path == "" {
		return nil
	}
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		return &config.FieldError{Field: "kubeconfig-out", Err: fmt.Errorf("%s is a directory; name a file", path)}
	}
	dir := filepath.Dir(path)
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return &config.FieldError{Field: "kubeconfig-out", Err: fmt.Errorf("%s is not a directory; make it first", dir)}
	}
	return nil
}

// cause is an error of a file less the path, which may be a temporary one.
func cause(err error) error {
	var p *os.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return p.Err
	case errors.As(err, &l):
		return l.Err
	}
	return err
}

// openToOthers tells a directory in which others may replace a file of ours. In
// one like /tmp they may not. Windows shows no such mode.
func openToOthers(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && runtime.GOOS != "windows" && fi.Mode().Perm()&0o022 != 0 && fi.Mode()&os.ModeSticky == 0
}

// encoded is PEM as a kubeconfig has it.
func encoded(pem []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(pem)) }

// writeKubeconfig writes a kubeconfig that works as it is, whole or not at all,
// readable for this user alone, and returns what it wrote.
func writeKubeconfig(path string, s *source, d *daemon.Daemon) ([]byte, error) {
	addr := d.Loopback()
	if addr == "" {
		return nil, errors.New("a kubeconfig needs a loopback listener; add --listen https://127.0.0.1:0")
	}
	ca, cert, key, err := d.LoopbackSession()
	if err != nil {
		return nil, err
	}
	data, err := plainKubeconfig(s, addr, ca, cert, key)
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".execproxy-*") // 0600
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig %s: %w", path, cause(err))
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
		return nil, fmt.Errorf("writing the kubeconfig %s: %w", path, cause(err))
	}
	return data, nil
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
