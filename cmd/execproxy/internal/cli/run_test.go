//go:build unix

package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
)

const patience = 20 * time.Second

// stage is a world with an API server, and the flags that name both.
func stage(t *testing.T) (w *world, places daemon.Places, flags []string) {
	t.Helper()
	api, err := apiserver.Start(apiserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	dir, err := os.MkdirTemp("", "ep") // a socket's path has little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	key, cert, err := api.Issue("jane")
	if err != nil {
		t.Fatal(err)
	}
	pair := filepath.Join(dir, "pair.pem")
	if err := os.WriteFile(pair, append(key, cert...), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"HOME": dir, "XDG_RUNTIME_DIR": dir, "PATH": os.Getenv("PATH")}
	w = &world{
		stdin: strings.NewReader(""), dir: dir, version: "v0.0.0-test",
		lookup: func(k string) (string, bool) { v, ok := env[k]; return v, ok },
	}
	for k, v := range env {
		w.environ = append(w.environ, k+"="+v)
	}
	if places, err = w.places(); err != nil {
		t.Fatal(err)
	}
	ca := base64.StdEncoding.EncodeToString(api.CA())
	return w, places, []string{"--server", api.URL(), "--certificate-authority-data", ca, "--key", pair}
}

// wait looks until what is there.
func wait(t *testing.T, what func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !what(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen")
		}
	}
}

// A proxy that is stopped takes the client of `run` along, and leaves nothing.
func TestRunIsStopped(t *testing.T) {
	w, places, flags := stage(t)
	var out, errs bytes.Buffer
	w.stdout, w.stderr = &out, &errs
	started := filepath.Join(w.dir, "started")
	w.args = append(append([]string{"run"}, flags...), "--", "sh", "-c", `cp "$KUBECONFIG" "$0.new" && mv "$0.new" "$0" && exec sleep 60`, started)
	code := make(chan int, 1)
	go func() { code <- run(t.Context(), w) }()
	wait(t, func() bool { _, err := os.Stat(started); return err == nil })
	list := daemon.Running(t.Context(), places)
	if len(list) != 1 {
		t.Fatalf("%d proxies run, want 1", len(list))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	list[0].PID = -1 // this process, which goes on
	if err := daemon.Stop(ctx, places, list[0]); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-code:
		if got != 128+15 {
			t.Errorf("exit %d, want 143; stderr %q", got, errs.String())
		}
	case <-time.After(patience):
		t.Fatal("run did not end")
	}
	left, err := os.ReadDir(places.Runtime)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The kubeconfig of `serve` goes with it, but not another proxy's in its place.
func TestKubeconfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "one"
	k := &kubeconfigFile{path: path, write: func() ([]byte, error) { return []byte(text), os.WriteFile(path, []byte(text), 0o600) }}
	content := func() string {
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return ""
		}
		return string(data)
	}
	if err := k.first(); err != nil || content() != "one" {
		t.Fatalf("%q, %v", content(), err)
	}
	text = "two"
	if err := k.renew(); err != nil || content() != "two" {
		t.Errorf("renewed: %q, %v", content(), err)
	}
	if err := os.WriteFile(path, []byte("another's"), 0o600); err != nil {
		t.Fatal(err)
	}
	text = "three"
	if err := k.renew(); err != nil {
		t.Error(err)
	}
	k.remove()
	if content() != "another's" {
		t.Errorf("another proxy's kubeconfig became %q", content())
	}
	if err := os.WriteFile(path, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.remove()
	if content() != "" {
		t.Errorf("left behind: %q", content())
	}
	// The next proxy has the same session, and its file is the same to the byte.
	if err := k.first(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path+".next", []byte(text), 0o600), os.Rename(path+".next", path)); err != nil {
		t.Fatal(err)
	}
	k.remove()
	if content() != text {
		t.Error("it removed the next proxy's kubeconfig")
	}
}

// The pair is found in what is written, or it would be written every hour.
func TestKubeconfigHasItsPair(t *testing.T) {
	cert := bytes.Repeat([]byte("certificate\n"), 100)
	s := &source{context: "c", cluster: "k", user: "u", config: &config.Config{Cluster: config.Cluster{Server: "https://a:1/authenticate/"}}}
	data, err := plainKubeconfig(s, "127.0.0.1:1", []byte("ca"), cert, []byte("key"))
	if err != nil || !bytes.Contains(data, encoded(cert)) {
		t.Errorf("%v in\n%s", err, data)
	}
	// A webhook's client posts to this and nothing else.
	if !bytes.Contains(data, []byte("server: https://127.0.0.1:1/authenticate\n")) {
		t.Errorf("the server has not its path in\n%s", data)
	}
}

func TestOpenToOthers(t *testing.T) {
	dir := t.TempDir()
	for mode, want := range map[os.FileMode]bool{0o700: false, 0o755: false, 0o775: true, 0o777: true, 0o777 | os.ModeSticky: false} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if got := openToOthers(dir); got != want {
			t.Errorf("%v: %v", mode, got)
		}
	}
}
