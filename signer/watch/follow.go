package watch

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// follow watches the directories of the files and of every symbolic link on the way to
// them: Kubernetes swaps a link in the middle.
func follow(notify *fsnotify.Watcher, paths []string) {
	want := map[string]bool{}
	for _, p := range paths {
		directories(p, want)
	}
	for _, dir := range notify.WatchList() {
		if !want[dir] {
			_ = notify.Remove(dir) // it may be gone already
		}
	}
	for dir := range want {
		// A directory that is not there yet shows up in the nearest one that is. What
		// cannot be watched at all is looked at all the same.
		for notify.Add(dir) != nil && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
		}
	}
}

const maxLinks = 40 // as in Linux

// directories adds to all the directory of each link on the way to path, and path's own.
func directories(path string, all map[string]bool) {
	path, err := filepath.Abs(path)
	if err != nil {
		return
	}
	root := filepath.VolumeName(path) + string(filepath.Separator)
	at, rest := root, strings.TrimPrefix(path, root)
	for links := 0; rest != "" && links < maxLinks; {
		name, more, _ := strings.Cut(rest, string(filepath.Separator))
		next := filepath.Join(at, name)
		target, err := os.Readlink(next)
		if err != nil {
			if more == "" {
				all[at] = true
			}
			at, rest = next, more
			continue
		}
		all[at] = true
		links++
		if !filepath.IsAbs(target) {
			target = filepath.Join(at, target)
		}
		path = filepath.Join(target, more)
		root = filepath.VolumeName(path) + string(filepath.Separator)
		at, rest = root, strings.TrimPrefix(path, root)
	}
}
