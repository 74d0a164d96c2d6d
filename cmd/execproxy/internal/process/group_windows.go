package process

import "os/exec"

// OwnGroup does nothing: a program that is killed leaves behind what it started.
func OwnGroup(*exec.Cmd) {}
