package process

import "os/exec"

// Apart does nothing: a program that is given up leaves behind what it started.
func Apart(*exec.Cmd) {}
