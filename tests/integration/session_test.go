//go:build linux

package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// outFile runs `execproxy serve --kubeconfig-out` without an address, and returns
// it and what it wrote.
func (h *home) outFile(args ...string) (*background, string) {
	h.t.Helper()
	out := h.path("out")
	_ = os.Remove(out) // what a killed one left
	b := h.start(append([]string{h.bin, "serve", "--kubeconfig-out", out}, args...)...)
	var text []byte
	eventually(h.t, patience, func() (err error) {
		select {
		case <-b.done:
			h.t.Fatalf("serve ended with exit code %d: %s", b.code, b.stderr)
		default:
		}
		text, err = os.ReadFile(out)
		return err
	})
	return b, string(text)
}

// TestServeIsTheSameAgain: however a proxy ended, the next one has its port, its
// authority and its pair; unless it is somebody else, or the pair was revoked.
func TestServeIsTheSameAgain(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	flags := upstreamFlags(u.url, cert, key)
	b, first := h.outFile(flags...)
	s := &server{background: b, kubeconfig: h.path("out")}
	client := s.client(t)
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	must(t, err)
	url := config.Host
	get(t, client, url+"/version")

	files, err := filepath.Glob(h.path("state/execproxy/session/*"))
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("sessions: %q", files)
	}
	for path, want := range map[string]os.FileMode{files[0]: 0o600, filepath.Dir(files[0]): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		b.signal(signal)
		b.wait()
		var again string
		if b, again = h.outFile(flags...); again != first {
			t.Errorf("after %v the kubeconfig is another:\n%s\nwas\n%s", signal, again, first)
		}
		// The client that was there before is let in.
		eventually(t, patience, func() error { return fetch(t.Context(), client, url+"/version") })
	}

	// A pair opens the way to one server, as one user.
	b.signal(syscall.SIGTERM)
	b.wait()
	port := fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
	joan, joanKey := h.user("joan", "dev")
	for what, flags := range map[string][]string{
		"as somebody else":          upstreamFlags(u.url, joan, joanKey),
		"to another server":         upstreamFlags(newUpstream(t).url, cert, key),
		"after it has been revoked": flags,
	} {
		if what == "after it has been revoked" {
			must(t, os.Remove(files[0]))
		}
		b, _ := h.outFile(append(flags, "--listen", port)...)
		resp, err := client.Get(port + "/version")
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("the pair opens the way %s: %s", what, resp.Status)
		}
		b.signal(syscall.SIGTERM)
		b.wait()
	}
}

// TestServeRefusesAnOpenSession: a session that others could read is not used, nor
// is one made where they could put theirs.
func TestServeRefusesAnOpenSession(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	flags := upstreamFlags(u.url, cert, key)
	b, _ := h.outFile(flags...)
	b.signal(syscall.SIGTERM)
	b.wait()
	files, err := filepath.Glob(h.path("state/execproxy/session/*"))
	must(t, err)
	for _, path := range []string{files[0], filepath.Dir(files[0])} {
		must(t, os.Chmod(path, 0o755))
		r := h.execproxy(append([]string{"serve", "--kubeconfig-out", h.path("out")}, flags...)...)
		if r.code != 1 || r.stdout != "" {
			t.Errorf("with mode 0755 of %s: %s", path, r)
		}
		if strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, path) || !strings.Contains(r.stderr, "chmod") {
			t.Errorf("stderr: %s", r.stderr)
		}
		must(t, os.Chmod(path, map[bool]os.FileMode{true: 0o600, false: 0o700}[path == files[0]]))
	}
}
