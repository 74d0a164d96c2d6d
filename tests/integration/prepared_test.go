//go:build linux

package integration

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPreparedPlaces: a neighbour was there first, with whatever the file
// system knows. The start is refused, says why, and leaves what it found.
func TestPreparedPlaces(t *testing.T) {
	t.Parallel()
	alice, mallory := newAccount(t, "alice"), newAccount(t, "mallory")
	for name, put := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o777) },
		"link":      func(path string) error { return os.Symlink(filepath.Dir(path)+"-loot", path) },
		"FIFO":      func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"file":      func(path string) error { return os.WriteFile(path, nil, 0o666) },
		"socket": func(path string) error {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer func() { _ = syscall.Close(fd) }()
			return syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
		},
	} {
		for variable, below := range map[string]string{"XDG_RUNTIME_DIR": "execproxy", "XDG_STATE_HOME": "execproxy"} {
			t.Run(name+" in "+variable, func(t *testing.T) {
				t.Parallel()
				h, u := alice.home(t), newUpstream(t)
				// A shared directory like /tmp, which is what unset variables are often set to.
				shared := h.path("shared")
				must(t, os.Mkdir(shared, 0o755))
				must(t, os.Chmod(shared, 0o777|fs.ModeSticky))
				must(t, os.Mkdir(shared+"-loot", 0o777))
				path := filepath.Join(shared, below)
				must(t, put(path))
				must(t, os.Lchown(path, mallory.uid, mallory.gid))
				must(t, os.Lchown(shared+"-loot", mallory.uid, mallory.gid))
				before, err := os.Lstat(path)
				must(t, err)
				h.env[variable] = shared
				refused(t, h.exec(h.jane(u)), 1, path, variable)
				after, err := os.Lstat(path)
				if err != nil || after.Mode() != before.Mode() || !os.SameFile(before, after) {
					t.Errorf("what stood there was %v and is %v, %v", before, after, err)
				}
				if loot, err := os.ReadDir(shared + "-loot"); err != nil || len(loot) > 0 {
					t.Errorf("made in mallory's directory: %v, %v", loot, err)
				}
				h.env[variable] = h.path("r")
				_ = os.Remove(path)
			})
		}
	}
}

// TestSharedDirectoryRace: in a directory like /tmp a neighbour makes and removes
// all he can under the name that alice's daemon wants, while she starts it over
// and over. Each start succeeds in a directory of hers or says why not.
func TestSharedDirectoryRace(t *testing.T) {
	t.Parallel()
	alice, mallory := newAccount(t, "alice"), newAccount(t, "mallory")
	a, m, u := alice.home(t), mallory.home(t), newUpstream(t)
	a.openUp(0o755)
	shared := a.path("shared")
	must(t, os.Mkdir(shared, 0o755))
	must(t, os.Chmod(shared, 0o777|fs.ModeSticky))
	a.env["XDG_RUNTIME_DIR"] = shared
	path := filepath.Join(shared, "execproxy")
	race := m.startCmd(m.role(roleRace, path))
	race.stdout.await(t, "racing ")
	served := 0
	for range 25 {
		p := a.jane(u)
		r := a.exec(p)
		if r.code != 0 {
			refused(t, r, 1, path)
			continue
		}
		served++
		d := decode(t, r.stdout)
		info, err := os.Lstat(path)
		must(t, err)
		if !info.IsDir() || info.Mode().Perm() != 0o700 || int(info.Sys().(*syscall.Stat_t).Uid) != alice.uid {
			t.Fatalf("served from %v of uid %d", info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		}
		get(t, d.client(t, u.url), u.url+"/version")
		p.lock.release()
		a.gone("", 2*time.Second)
		must(t, os.RemoveAll(path)) // the next start is raced for again
	}
	race.signal(syscall.SIGKILL)
	<-race.done
	loot, err := filepath.Glob(filepath.Join(shared, "mallory-*", "*"))
	if err != nil || len(loot) > 0 {
		t.Errorf("made in mallory's directory: %q, %v", loot, err)
	}
	t.Logf("%d of 25 starts were served", served)
	a.env["XDG_RUNTIME_DIR"] = a.path("r")
}

// TestPreparedFiles: a neighbour was there first in a directory like /tmp, with
// the name of a file that alice wants written. Nothing of hers goes into what is
// his, and nothing through it into what else is hers.
func TestPreparedFiles(t *testing.T) {
	t.Parallel()
	alice, mallory := newAccount(t, "alice"), newAccount(t, "mallory")
	h, u := alice.home(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	shared := h.path("shared")
	must(t, os.Mkdir(shared, 0o755))
	must(t, os.Chmod(shared, 0o777|fs.ModeSticky))
	loot := h.path("loot") // mallory's
	must(t, os.WriteFile(loot, nil, 0o600))
	must(t, os.Chmod(loot, 0o666))
	must(t, os.Lchown(loot, mallory.uid, mallory.gid))
	precious := h.file("precious", "alice's\n")
	for name, put := range map[string]func(path string) error{
		"file of his":        func(path string) error { return os.Link(loot, path) },
		"link to his":        func(path string) error { return os.Symlink(loot, path) },
		"link to hers":       func(path string) error { return os.Symlink(precious, path) },
		"FIFO":               func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"hard link to hers":  func(path string) error { return os.Link(precious, path) },
		"FIFO he listens to": func(path string) error { return errors.Join(syscall.Mkfifo(path, 0o666), os.Chmod(path, 0o666)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shared, strings.ReplaceAll(name, " ", "-"))
			must(t, put(path))
			if !strings.Contains(name, "hers") || strings.HasPrefix(name, "link") {
				must(t, os.Lchown(path, mallory.uid, mallory.gid))
			}
			if strings.HasPrefix(name, "FIFO he") {
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				must(t, err)
				defer func() {
					must(t, f.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
					if n, err := f.Read(make([]byte, 64)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("%d bytes came to him, %v", n, err)
					}
					_ = f.Close()
				}()
			}
			serve := append([]string{h.bin, "serve", "--listen", "https://127.0.0.1:0"}, upstreamFlags(u.url, cert, key)...)
			refused(t, h.run(append(serve, "--log-file", path)...), 1, path, "--log-file")
			p := h.jane(u)
			p.config["logFile"] = path
			refused(t, h.exec(p), 1, path, "--log-file")
			// In a sticky directory nobody can replace what is another's, so his stays and it is an error.
			out := h.start(append(serve, "--kubeconfig-out", path)...)
			replaced := false
			eventually(t, patience, func() error {
				select {
				case <-out.done:
					return nil
				default:
				}
				if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && int(info.Sys().(*syscall.Stat_t).Uid) == alice.uid && info.Mode().Perm() == 0o600 && info.Size() > 100 {
					replaced = true
					return nil
				}
				return errors.New("neither an end nor a file of hers")
			})
			out.signal(syscall.SIGTERM)
			if out.wait(); !replaced && !strings.Contains(out.stderr.String(), path) {
				t.Errorf("--kubeconfig-out: %s", out.stderr)
			}
			for _, file := range []string{loot, precious} {
				if data, err := os.ReadFile(file); err != nil || string(data) != map[string]string{loot: "", precious: "alice's\n"}[file] {
					t.Errorf("%s holds %q, %v", file, data, err)
				}
			}
		})
	}
}

// TestReplacedKubeconfig: others may write where alice has her kubeconfig written,
// and put something in its place. Her proxy ends all the same.
func TestReplacedKubeconfig(t *testing.T) {
	t.Parallel()
	alice, mallory := newAccount(t, "alice"), newAccount(t, "mallory")
	h, u := alice.home(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	shared := h.path("shared")
	must(t, os.Mkdir(shared, 0o755))
	must(t, os.Chmod(shared, 0o777))
	path := filepath.Join(shared, "kubeconfig")
	s := h.start(append([]string{h.bin, "serve", "--listen", "https://127.0.0.1:0", "--kubeconfig-out", path}, upstreamFlags(u.url, cert, key)...)...)
	eventually(t, patience, func() error { _, err := os.Stat(path); return err })
	s.stderr.await(t, "chmod go-w")
	must(t, os.Remove(path))
	must(t, syscall.Mkfifo(path, 0o666))
	must(t, os.Lchown(path, mallory.uid, mallory.gid))
	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 {
		t.Errorf("it ended with %d: %s", code, s.stderr)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("what he put there: %v, %v", info, err)
	}
}
