// Package kubebin builds the Kubernetes programs that the tests run against,
// from their Go modules, and finds them again.
//
// The versions are pinned by the module in tests/integration/kube, which is
// separate from the tests' own so that the programs get the dependencies their
// authors released them with, not ours. Only Go and its module proxy are needed.
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
	"strings"
	"time"
)

// Variable names the directory of the programs, instead of the one in the cache.
const Variable = "EXECPROXY_TEST_BIN"

// Cure is what a person does about a missing program.
const Cure = "run `go run ./cmd/build-kube` in tests/integration (about five minutes on two cores, once)"

// kubeVersion is what the programs say they are; it must agree with kube/go.mod.
const kubeVersion = "v1.36.3"

const modulePath = "github.com/execproxy/execproxy/tests/integration"

// program is one executable and the package it is built from.
type program struct{ name, pkg string }

var programs = []program{
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kubelet", "k8s.io/kubernetes/cmd/kubelet"},
}

const ldflags = "-s -w -X k8s.io/component-base/version.gitVersion=" + kubeVersion +
	" -X k8s.io/client-go/pkg/version.gitVersion=" + kubeVersion

// Root returns the directory of the module tests/integration, looking upwards
// from the working directory.
func Root() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module "+modulePath+"\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside the module %s: run this in tests/integration", wd, modulePath)
		}
	}
}

// Dir returns where the programs are or will be: $EXECPROXY_TEST_BIN, else a
// directory of the user's cache named by everything that decides their content.
func Dir() (string, error) {
	if dir := os.Getenv(Variable); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(root, "kube", name))
		if err != nil {
			return "", fmt.Errorf("finding the versions of the Kubernetes programs: %w", err)
		}
		_, _ = h.Write(data)
	}
	_, _ = fmt.Fprintln(h, runtime.Version(), runtime.GOOS, runtime.GOARCH, ldflags)
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory (set %s instead): %w", Variable, err)
	}
	return filepath.Join(cache, "execproxy-test", kubeVersion+"-"+hex.EncodeToString(h.Sum(nil))[:12], "bin"), nil
}

// Find returns the path of each program. Programs that are missing are an
// error that names them all and the cure.
func Find() (map[string]string, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for _, p := range programs {
		paths[p.name] = filepath.Join(dir, p.name)
	}
	if missing := missing(dir); len(missing) > 0 {
		var names []string
		for _, p := range missing {
			names = append(names, p.name)
		}
		return nil, fmt.Errorf("no %s in %s: %s, or name their directory in %s",
			strings.Join(names, ", "), dir, Cure, Variable)
	}
	return paths, nil
}

func missing(dir string) []program {
	var out []program
	for _, p := range programs {
		info, err := os.Stat(filepath.Join(dir, p.name))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			out = append(out, p)
		}
	}
	return out
}

// Build builds what is missing in Dir and reports its progress to out. Two
// builds at once are safe: the second one waits and then finds everything there.
func Build(ctx context.Context, out io.Writer) (dir string, err error) {
	if dir, err = Dir(); err != nil {
		return "", err
	}
	if len(missing(dir)) == 0 {
		return dir, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, ".lock"))
	if err != nil {
		return "", fmt.Errorf("waiting for another build in %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, unlock()) }()

	todo := missing(dir)
	begin := time.Now()
	for i, p := range todo {
		start := time.Now()
		_, _ = fmt.Fprintf(out, "build-kube: %d/%d %s\n", i+1, len(todo), p.name)
		if err := build(ctx, out, filepath.Join(root, "kube"), ldflags, dir, p); err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(out, "build-kube: %d/%d %s built in %.0f s\n", i+1, len(todo), p.name, time.Since(start).Seconds())
	}
	if len(todo) > 0 {
		_, _ = fmt.Fprintf(out, "build-kube: all in %s after %.0f s\n", dir, time.Since(begin).Seconds())
	}
	return dir, nil
}

func build(ctx context.Context, out io.Writer, module, ldflags, dir string, p program) error {
	// Under another name first: a program is there whole or not at all.
	tmp := filepath.Join(dir, "."+p.name+".new")
	defer func() { _ = os.Remove(tmp) }()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", tmp, p.pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s from %s (go and its module proxy are needed): %w", p.name, p.pkg, err)
	}
	return os.Rename(tmp, filepath.Join(dir, p.name))
}
