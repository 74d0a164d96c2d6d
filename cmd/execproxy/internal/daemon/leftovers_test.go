package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/proxy/socket"
)

func TestSweep(t *testing.T) {
	p := Places{Runtime: filepath.Join(t.TempDir(), "r")}
	if _, err := socket.OpenDir(p.Runtime); err != nil {
		t.Fatal(err)
	}
	put := func(id string) (files []string) {
		api := p.Socket(id)
		files = []string{lifePath(api), controlPath(api), api, filepath.Join(scratchPath(api), "kubeconfig")}
		if err := os.Mkdir(scratchPath(api), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(f, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return files
	}
	const id = "0123456789abcdef"
	dead, alive, shared := append(put("run-1"), put(id+"-3")...), put(id+"-2"), append(put(id), put("my-own")...)
	lock, err := socket.TryAcquire(alive[0])
	if err != nil {
		t.Fatal(err)
	}
	sweep(p)
	for _, f := range dead {
		if _, err := os.Lstat(f); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was left", f)
		}
	}
	for _, f := range append(alive, shared...) {
		if _, err := os.Lstat(f); err != nil {
			t.Error(err)
		}
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestSettled(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("paths of Unix")
	}
	in := []string{"AWS_SHARED_CREDENTIALS_FILE=creds", "AWS_CONFIG_FILE=/abs", "AWS_PROFILE=creds", "SSL_CERT_FILE="}
	want := []string{"AWS_SHARED_CREDENTIALS_FILE=/w/creds", "AWS_CONFIG_FILE=/abs", "AWS_PROFILE=creds", "SSL_CERT_FILE="}
	if got := settled(in, "/w"); !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if in[0] != "AWS_SHARED_CREDENTIALS_FILE=creds" {
		t.Error("it changed the caller's")
	}
}

// A log in a directory of everybody must not become a way to write elsewhere.
func TestLogFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "log"), filepath.Join(dir, "victim")
	if err := os.Symlink(victim, path); err != nil {
		t.Skip(err)
	}
	if f, err := openLog(path); err == nil {
		f.Close()
		t.Error("the link was followed")
	}
	if noFollow != 0 { // put there between the look and the opening
		if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|noFollow, 0o600); err == nil {
			f.Close()
			t.Error("the open follows links")
		}
	}
	if _, err := os.Lstat(victim); err == nil {
		t.Error("the link's target was made")
	}
}

// Nor must one that is another name of a file of ours.
func TestLogIsNoHardLink(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "log"), filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := openLog(victim); err != nil {
		t.Errorf("a file of one name: %v", err)
	} else {
		f.Close()
	}
	if err := os.Link(victim, path); err != nil || noFollow == 0 {
		t.Skip(err)
	}
	if f, err := openLog(path); err == nil {
		f.Close()
		t.Error("it logs into a file that has another name")
	}
}

// The port of a kubeconfig is taken by the proxy of another identity: say which.
func TestPortOfAnotherIdentity(t *testing.T) {
	_, c, p := playground(t)
	first := begin(t, c, Options{ID: "aaaa", Life: lifeIdle, Places: p, Sockets: []string{p.Socket("aaaa")}, Loopback: []string{"127.0.0.1:0"}})
	second := begin(t, c, Options{ID: "bbbb", Life: lifeIdle, Places: p, Sockets: []string{p.Socket("bbbb")}})
	addr := first.d.Loopback()
	_, err := second.d.document(t.Context(), Ask{Loopback: addr})
	if err == nil || !strings.Contains(err.Error(), "execproxy stop aaaa") || !strings.Contains(err.Error(), addr) {
		t.Errorf("error %v", err)
	}
	for range 2 {
		if _, err := first.d.document(t.Context(), Ask{Loopback: addr}); err != nil {
			t.Error(err)
		}
	}
	if s := first.d.status(); s.Socket != p.Socket("aaaa") {
		t.Errorf("status names the socket %q", s.Socket)
	}
	first.cancel()
	first.gone(t)
	second.cancel()
	second.gone(t)
}
