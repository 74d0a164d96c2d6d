package pin

import "os/exec"

func apart(*exec.Cmd, bool) {}

// keepDescriptors: on Windows a program inherits what it is given by name.
func keepDescriptors() {}
