package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// profiled measures, under perf where that is asked for.
func (b *bench) profiled(ctx context.Context, t *target, l *load) (s sample, err error) {
	if b.profile == "" || len(t.pids) == 0 {
		return b.measure(ctx, t, l)
	}
	if err := os.MkdirAll(b.profile, 0o755); err != nil {
		return s, err
	}
	var pids []string
	for _, pid := range t.pids {
		pids = append(pids, strconv.Itoa(pid))
	}
	name := filepath.Join(b.profile, strings.NewReplacer(" ", "-", ",", "", "/", "", "+", "").Replace(l.name+"_"+t.name))
	data := name + ".perf"
	stopPerf, err := startPerf("record", "-q", "-F", "2000", "-e", "cpu-clock", "--call-graph", "fp", "-o", data, "-p", strings.Join(pids, ","))
	if err != nil {
		return s, err
	}
	s, err = b.measure(ctx, t, l)
	if perfErr := stopPerf(); err == nil {
		err = perfErr
	}
	if err != nil {
		return s, err
	}
	report := func(args ...string) ([]byte, error) {
		args = append([]string{"report", "-i", data, "--stdio", "-g", "none", "-F", "overhead,symbol"}, args...)
		out, err := exec.CommandContext(ctx, "perf", args...).Output()
		if err != nil {
			return nil, fmt.Errorf("perf report: %w%s", err, stderrOf(err))
		}
		return out, nil
	}
	self, err := report("--no-children", "--percent-limit", "0.3")
	if err != nil {
		return s, err
	}
	below, err := report("--children", "-F", "overhead_children,overhead,symbol", "--percent-limit", "1")
	if err != nil {
		return s, err
	}
	if err := os.WriteFile(name+".txt", append(self, below...), 0o644); err != nil {
		return s, err
	}
	b.log.Info("profile", "report", name+".txt", "graph", "perf report -i "+data)
	return s, nil
}

// startPerf starts perf and returns how to end it.
func startPerf(args ...string) (stop func() error, err error) {
	if _, err := exec.LookPath("perf"); err != nil {
		return nil, fmt.Errorf("%w: apt-get install linux-perf", err)
	}
	cmd := exec.Command("perf", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = endsWithUs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	time.Sleep(200 * time.Millisecond) // until it is attached; it does not say
	return func() error {
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() > 0 {
			return fmt.Errorf("perf: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
		}
		return nil
	}, nil
}
