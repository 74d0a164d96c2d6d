package daemon

import "golang.org/x/sys/unix"

// Linux on arm64 has no dup2.
func dup2(from, to int) error { return unix.Dup3(from, to, 0) }
