//go:build unix

package pin

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// keepDescriptors keeps what this process inherited from the programs that it starts.
func keepDescriptors() {
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		open, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range open {
			if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
				unix.CloseOnExec(fd)
			}
		}
		return
	}
}
