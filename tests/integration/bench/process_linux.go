package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
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

// mem is what processes hold, in MiB.
type mem struct{ rss, pss, anon float64 }

func memory(pids []int) (m mem, err error) {
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return m, err
		}
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			if len(fields) != 3 {
				continue
			}
			kib, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				continue
			}
			switch fields[0] {
			case "Rss:":
				m.rss += kib / 1024
			case "Pss:":
				m.pss += kib / 1024
			case "Anonymous:":
				m.anon += kib / 1024
			}
		}
	}
	return m, nil
}

// descriptors counts the open files of processes.
func descriptors(pids []int) (n int, err error) {
	for _, pid := range pids {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return 0, err
		}
		n += len(all)
	}
	return n, nil
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
