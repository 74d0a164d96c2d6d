package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/execproxy/execproxy/lockfile"
)

const hello = `package main

import "fmt"

func main() { fmt.Println("hello, world") }
`

const (
	pluginName  = "the plugin's own time"
	warmName    = "plugin, daemon running"
	coldName    = "plugin, starts the daemon"
	kubectlName = "kubectl version --client"
	helloName   = "Go hello world"
)

// plugin measures the plugin's own time, from its start to its end, as every
// run of a client pays it.
func (b *bench) plugin(ctx context.Context) error {
	if !b.runs(pluginName) {
		return nil
	}
	b.log.Info("plugin")
	program, err := b.buildHello(ctx)
	if err != nil {
		return err
	}
	warm, err := b.newHome()
	if err != nil {
		return err
	}
	running, err := b.start(ctx, warm, b.mtlsArgs())
	if err != nil {
		return err
	}
	defer running.end(context.WithoutCancel(ctx))

	rows := []struct {
		name string
		n    int
		took []float64 // ms
		once func() (time.Duration, error)
	}{
		{name: helloName, n: b.warm, once: func() (time.Duration, error) {
			return timed(exec.CommandContext(ctx, program))
		}},
		{name: kubectlName, n: b.cold, once: func() (time.Duration, error) {
			return timed(exec.CommandContext(ctx, b.kubectl, "version", "--client"))
		}},
		{name: warmName, n: b.warm, once: func() (time.Duration, error) {
			cmd, err := b.pluginCommand(ctx, running, b.mtlsArgs())
			if err != nil {
				return 0, err
			}
			return timed(cmd)
		}},
		{name: coldName, n: b.cold, once: func() (time.Duration, error) {
			return b.coldStart(ctx)
		}},
	}
	for round := range max(b.warm, b.cold) {
		for i := range rows {
			row := &rows[i]
			if round >= row.n {
				continue
			}
			d, err := row.once()
			if err != nil {
				return fmt.Errorf("%s: %w", row.name, err)
			}
			row.took = append(row.took, micros(d)/1000)
		}
	}
	fmt.Fprintf(b.out, "\n### The plugin's own time\n\n| | runs | median, ms | 90th percentile, ms |\n|---|---|---|---|\n")
	for _, row := range rows {
		slices.Sort(row.took)
		if n := len(row.took); n > 0 {
			b.results.plugin[row.name] = median(row.took)
			fmt.Fprintf(b.out, "| %s | %d | %.1f | %.1f |\n", row.name, n, median(row.took), row.took[n*9/10])
		}
	}
	return nil
}

// coldStart is the time of a plugin that finds nothing, in a new home.
func (b *bench) coldStart(ctx context.Context) (time.Duration, error) {
	h, err := b.newHome()
	if err != nil {
		return 0, err
	}
	lock, err := lockfile.Create(filepath.Join(h.dir, "lock"))
	if err != nil {
		return 0, err
	}
	s := &session{home: h, lock: lock}
	defer s.end(context.WithoutCancel(ctx))
	cmd, err := b.pluginCommand(ctx, s, b.mtlsArgs())
	if err != nil {
		return 0, err
	}
	return timed(cmd)
}

// timed runs cmd, which must print something.
func timed(cmd *exec.Cmd) (time.Duration, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	took := time.Since(begin)
	if stdout.Len() == 0 {
		return 0, fmt.Errorf("%s printed nothing", cmd.Path)
	}
	return took, nil
}

func (b *bench) buildHello(ctx context.Context) (string, error) {
	src, bin := filepath.Join(b.dir, "hello.go"), filepath.Join(b.dir, "hello")
	if err := os.WriteFile(src, []byte(hello), 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, src)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building a hello world to compare with: %w: %s", err, out)
	}
	return bin, nil
}
