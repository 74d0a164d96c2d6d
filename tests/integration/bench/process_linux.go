package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuTime is the time that the threads of a process have spent on a processor,
// to the nanosecond: the clock ticks of /proc/PID/stat are too coarse. The time
// of a thread that has ended is lost, but Go's threads stay.
func cpuTime(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("process %d is gone, or this kernel keeps no schedstat", pid)
	}
	var sum int64
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
	return time.Duration(sum), nil
}

// memory is what a process has resident, in MiB.
func memory(pid int) (float64, error) {
	if pid == 0 {
		return 0, nil
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no VmRSS of process %d", pid)
}

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
