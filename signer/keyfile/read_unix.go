//go:build !windows

package keyfile

import "syscall"

const (
	nonblock = syscall.O_NONBLOCK
	private  = true // the mode tells who may read a file
)
