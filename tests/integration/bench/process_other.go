//go:build !linux

package main

import (
	"errors"
	"runtime"
	"time"
)

var errLinux = errors.New("another process' CPU time is read from /proc: run the bench on Linux")

func cpuTime(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	return 0, errLinux
}

func memory(pid int) (float64, error) {
	if pid == 0 {
		return 0, nil
	}
	return 0, errLinux
}

func machine() string { return runtime.GOOS }
