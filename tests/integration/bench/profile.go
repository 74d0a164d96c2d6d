package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	stopPerf, _, err := startPerf("record", "-q", "-F", "2000", "-e", "cpu-clock", "--call-graph", "fp", "-o", data, "-p", strings.Join(pids, ","))
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
	counts, err := b.counted(ctx, t, l, pids)
	if err != nil {
		return s, err
	}
	if err := os.WriteFile(name+".txt", slices.Concat([]byte(counts), self, below), 0o644); err != nil {
		return s, err
	}
	b.log.Info("profile", "report", name+".txt", "graph", "perf report -i "+data)
	return s, nil
}

// counted measures once more and tells what the kernel was asked for, by request.
func (b *bench) counted(ctx context.Context, t *target, l *load, pids []string) (string, error) {
	const calls, switches = "raw_syscalls:sys_enter", "context-switches"
	stop, said, err := startPerf("stat", "-x", " ", "-e", calls+","+switches, "-p", strings.Join(pids, ","))
	if err != nil {
		return "", err
	}
	s, err := b.measure(ctx, t, l)
	if err = errors.Join(err, stop()); err != nil {
		return "", err
	}
	text := fmt.Sprintf("# %s, %s: of %d requests, each\n", t.name, l.name, s.all)
	for line := range strings.Lines(said()) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if n, err := strconv.ParseFloat(fields[0], 64); err == nil {
			what := map[string]string{calls: "system calls", switches: "context switches"}[fields[1]]
			text += fmt.Sprintf("# %8.2f %s\n", n/float64(s.all), what)
		}
	}
	if strings.Count(text, "\n") != 3 {
		return "", fmt.Errorf("perf stat counted nothing: %s", said())
	}
	b.log.Info("counted", "target", t.name, "of each request", strings.ReplaceAll(text[strings.Index(text, "\n")+1:], "\n", ""))
	return text, nil
}

// startPerf starts perf and returns how to end it, and what it has said on
// stderr then.
func startPerf(args ...string) (stop func() error, said func() string, err error) {
	if _, err := exec.LookPath("perf"); err != nil {
		return nil, nil, fmt.Errorf("%w: apt-get install linux-perf", err)
	}
	enable, control, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	acknowledged, acknowledge, err := os.Pipe()
	if err != nil {
		_, _ = enable.Close(), control.Close()
		return nil, nil, err
	}
	// It begins when it is told to, and says that it has: attaching takes its time.
	args = slices.Insert(args, 1, "--control=fd:3,4", "--delay=-1")
	cmd := exec.Command("perf", args...)
	cmd.ExtraFiles = []*os.File{enable, acknowledge}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = endsWithUs
	err = cmd.Start()
	_, _ = enable.Close(), acknowledge.Close()
	if err != nil {
		return nil, nil, err
	}
	_, err = control.WriteString("enable\n")
	if err == nil {
		_, err = acknowledged.Read(make([]byte, 16))
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, nil, fmt.Errorf("perf: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return func() error {
		defer func() { _, _ = control.Close(), acknowledged.Close() }()
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() > 0 {
			return fmt.Errorf("perf: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
		}
		return nil
	}, stderr.String, nil
}
