package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/execproxy/execproxy/proxy/socket"
)

// scratchPath is the directory of what else a proxy needs while it lives.
func scratchPath(socket string) string { return strings.TrimSuffix(socket, ".sock") + ".d" }

// Scratch makes a directory for this proxy alone, 0700, which is gone with it.
// Should it be killed, the next of its kind removes the directory.
func (d *Daemon) Scratch() (string, error) {
	dir := scratchPath(d.opt.Places.Socket(d.opt.ID))
	if err := os.RemoveAll(dir); err != nil { // of an earlier process with this pid
		return "", fmt.Errorf("making a private directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("making a private directory: %w", err)
	}
	d.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, nil
}

// perProcess is how a proxy is named that belongs to one process: see Private and
// Foreground. Anything else in the directory is not ours to sweep.
var perProcess = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(run|[0-9a-f]{16})-[0-9]+$`) })

// sweep removes what proxies left behind that are named after their process and
// were killed: nobody will start under their names again and clean up. Whoever
// lives holds his lock.
func sweep(p Places) {
	locks, err := filepath.Glob(filepath.Join(globEscape(p.Runtime), lifePath("*-*.sock")))
	if err != nil {
		return
	}
	for _, path := range locks {
		if !perProcess().MatchString(strings.TrimSuffix(filepath.Base(path), lifePath(".sock"))) {
			continue
		}
		lock, err := socket.TryAcquire(path)
		if err != nil {
			continue
		}
		api := strings.TrimSuffix(path, lifePath(""))
		_ = os.Remove(controlPath(api))
		_ = os.Remove(api)
		_ = os.RemoveAll(scratchPath(api))
		_ = lock.Remove()
	}
}
