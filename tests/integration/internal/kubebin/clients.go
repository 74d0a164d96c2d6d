package kubebin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// MissingError is a client that the tests could use and that is not there.
type MissingError struct{ What, Cure string }

func (e *MissingError) Error() string { return e.What + " is missing: " + e.Cure }

const (
	helmFlags   = "-s -w"
	h2specFlags = "-s -w"
)

// client is a program or a library in a directory of its own.
type client struct {
	name string
	dir  string // of the cache; named by everything that decides its content
	file string // in there: it is there when this is
}

func helm() (client, error) {
	return newClient("helm", "helm", []string{"helm/go.mod", "helm/go.sum"}, runtime.Version(), runtime.GOOS, runtime.GOARCH, helmFlags)
}

func h2spec() (client, error) {
	return newClient("h2spec", "h2spec", []string{"h2spec/go.mod", "h2spec/go.sum"}, runtime.Version(), runtime.GOOS, runtime.GOARCH, h2specFlags)
}

func javaScript() (client, error) {
	return newClient("npm", "node_modules/@kubernetes/client-node/dist/index.js", []string{"javascript/package.json", "javascript/package-lock.json"})
}

// Helm returns the path of the Helm that the module in tests/integration/helm
// pins. One that was not built yet is a *[MissingError].
func Helm() (string, error) { return found(helm()) }

// H2spec returns the path of the h2spec that the module in
// tests/integration/h2spec pins. One that was not built yet is a *[MissingError].
func H2spec() (string, error) { return found(h2spec()) }

// JavaScript returns the entry file of @kubernetes/client-node, in the version
// that tests/integration/javascript pins. One that was not installed yet is a
// *[MissingError].
func JavaScript() (string, error) { return found(javaScript()) }

// BuildHelm builds Helm, where it is missing.
func BuildHelm(ctx context.Context, out io.Writer) error {
	c, err := helm()
	if err != nil {
		return err
	}
	return c.once(func(root string) error {
		start := time.Now()
		if err := build(ctx, out, filepath.Join(root, "helm"), helmFlags, c.dir, program{"helm", "helm.sh/helm/v4/cmd/helm"}); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "build-kube: helm built in %.0f s\n", time.Since(start).Seconds())
		return nil
	})
}

// BuildH2spec builds h2spec, where it is missing.
func BuildH2spec(ctx context.Context, out io.Writer) error {
	c, err := h2spec()
	if err != nil {
		return err
	}
	return c.once(func(root string) error {
		return build(ctx, out, filepath.Join(root, "h2spec"), h2specFlags, c.dir, program{"h2spec", "github.com/summerwind/h2spec/cmd/h2spec"})
	})
}

// InstallJavaScript installs @kubernetes/client-node with npm, where it is missing.
func InstallJavaScript(ctx context.Context, out io.Writer) error {
	c, err := javaScript()
	if err != nil {
		return err
	}
	return c.once(func(root string) error {
		// Elsewhere first: it is there whole or not at all.
		tmp, err := os.MkdirTemp(c.dir, ".new-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(tmp) }()
		for _, name := range []string{"package.json", "package-lock.json"} {
			data, err := os.ReadFile(filepath.Join(root, "javascript", name))
			if err == nil {
				err = os.WriteFile(filepath.Join(tmp, name), data, 0o644)
			}
			if err != nil {
				return err
			}
		}
		cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir, cmd.Stdout, cmd.Stderr = tmp, out, out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("npm ci of tests/integration/javascript (Debian's packages nodejs and npm, and npm's registry are needed): %w", err)
		}
		return os.Rename(filepath.Join(tmp, "node_modules"), filepath.Join(c.dir, "node_modules"))
	})
}

func newClient(name, file string, pins []string, more ...string) (client, error) {
	root, err := Root()
	if err != nil {
		return client{}, err
	}
	h := sha256.New()
	for _, pin := range pins {
		data, err := os.ReadFile(filepath.Join(root, pin))
		if err != nil {
			return client{}, fmt.Errorf("finding the version of %s: %w", name, err)
		}
		_, _ = h.Write(data)
	}
	_, _ = fmt.Fprintln(h, more)
	cache, err := os.UserCacheDir()
	if err != nil {
		return client{}, fmt.Errorf("finding the cache directory: %w", err)
	}
	return client{name, filepath.Join(cache, "execproxy-test", name+"-"+hex.EncodeToString(h.Sum(nil))[:12]), file}, nil
}

func found(c client, err error) (string, error) {
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.dir, c.file)
	if _, err := os.Stat(path); err != nil {
		return "", &MissingError{path, Cure}
	}
	return path, nil
}

// once makes what is missing, in one process at a time.
func (c client) once(make func(root string) error) (err error) {
	if _, err := found(c, nil); err == nil {
		return nil
	}
	root, err := Root()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(c.dir, ".lock"))
	if err != nil {
		return fmt.Errorf("waiting for another build in %s: %w", c.dir, err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if _, err := found(c, nil); err == nil {
		return nil
	}
	return make(root)
}
