package cli

import (
	"os"
	"syscall"
)

var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}
