package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// endsWithUs ends a program that we start when we are killed.
var endsWithUs = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}

// family is a process and its children: nginx' workers are its master's.
func family(pid int) []int {
	all := []int{pid}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return all
	}
	for _, field := range strings.Fields(string(data)) {
		if child, err := strconv.Atoi(field); err == nil {
			all = append(all, child)
		}
	}
	return all
}

// cpuTime is the time that the threads of processes have spent on a processor,
// to the nanosecond: the clock ticks of /proc/PID/stat are too coarse. The time
// of a thread that has ended is lost, but these programs' threads stay.
func cpuTime(pids []int) (time.Duration, error) {
	var sum int64
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil || len(threads) == 0 {
			return 0, fmt.Errorf("process %d is gone, or this kernel keeps no schedstat", pid)
		}
		for _, thread := range threads {
			data, err := os.ReadFile(thread)
			if err != nil {
				continue // ended since
			}
			first, _, _ := bytes.Cut(data, []byte(" "))
			n, err := strconv.ParseInt(string(first), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", thread, err)
			}
			sum += n
		}
	}
	return time.Duration(sum), nil
}

// mem is what processes hold, in MiB. The proportional share is unknown, -1,
// where the process lets nobody but root look.
type mem struct{ rss, anon, pss float64 }

func memory(pids []int) (m mem, err error) {
	for _, pid := range pids {
		sums, err := kib(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:", "RssAnon:")
		if err != nil {
			return m, err
		}
		m.rss += sums[0] / 1024
		m.anon += sums[1] / 1024
		share, err := kib(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
		switch {
		case errors.Is(err, fs.ErrPermission):
			m.pss = -1
		case err != nil:
			return m, err
		case m.pss >= 0:
			m.pss += share[0] / 1024
		}
	}
	return m, nil
}

// kib reads lines like "VmRSS:  1234 kB".
func kib(file string, names ...string) ([]float64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := make([]float64, len(names))
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if i := slices.Index(names, strings.Join(fields[:min(1, len(fields))], "")); i >= 0 && len(fields) == 3 {
			if all[i], err = strconv.ParseFloat(fields[1], 64); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return all, nil
}

// descriptors counts the open files of processes; -1 where nobody but root may.
func descriptors(pids []int) (n int, err error) {
	for _, pid := range pids {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if errors.Is(err, fs.ErrPermission) {
			return -1, nil
		}
		if err != nil {
			return 0, err
		}
		n += len(all)
	}
	return n, nil
}

// forget takes a file out of the cache.
func forget(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }

// machine names the processor and the kernel.
func machine() string {
	model := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return model + ", Linux " + strings.TrimSpace(string(kernel))
}
