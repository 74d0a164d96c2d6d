package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

// kubectl shows nothing of an answer to its discovery, so the plugin says that no request
// can be signed now.
func TestUnsignable(t *testing.T) {
	_, c, p := playground(t)
	file := filepath.Join(t.TempDir(), "header")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("Bearer pin-2718")
	c.Identity = config.Identity{Auth: config.AuthHeaders, Headers: []string{"Authorization=@" + file}}
	path := p.Socket("headers")
	begin(t, c, Options{ID: "headers", Life: lifeIdle, NoDrain: true, Places: p, Sockets: []string{path}})
	ask := func() error {
		_, err := Answer(t.Context(), path, Ask{})
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "write the value into it") {
		t.Errorf("without the file: %v", err)
	}
	write("Bearer pin-2718")
	if err := ask(); err != nil {
		t.Errorf("with the file again: %v", err)
	}
}

// By sudo or su a kubeconfig may be another user's, whose proxy has its port: whose it is
// says more than that the port is taken.
func TestOthersKubeconfigAndPort(t *testing.T) {
	_, c, p := playground(t)
	path := p.Socket("others")
	begin(t, c, Options{ID: "others", Life: lifeIdle, NoDrain: true, Places: p, Sockets: []string{path}})
	theirs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	pinned, err := LoopbackAuthority(Places{State: t.TempDir() + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Answer(t.Context(), path, Ask{Loopback: theirs.Addr().String(), Authority: pinned})
	if err == nil || !strings.Contains(err.Error(), "is not this user's loopback CA") {
		t.Errorf("another user's kubeconfig: %v", err)
	}
}

// Who starts a second proxy at the same address learns that the first one is theirs, and
// which it is.
func TestSecondProxy(t *testing.T) {
	_, c, p := playground(t)
	path := p.Socket("first")
	first := begin(t, c, Options{ID: "first", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{path}, Loopback: []string{"127.0.0.1:0"}})
	second := func(ctx context.Context, id string) error {
		own := *c
		return Run(ctx, &own, Options{
			ID: id, Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{p.Socket(id)}, Loopback: []string{first.d.Loopback()},
			LogWriter: t.Output(), Ready: func(*Daemon) error { return errors.New("it started") },
		})
	}
	impatient, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // the first one would be waited for
	defer cancel()
	for id, ctx := range map[string]context.Context{"first": impatient, "second": t.Context()} {
		if err := second(ctx, id); err == nil || !strings.Contains(err.Error(), "`execproxy stop first`") {
			t.Errorf("%s: %v", id, err)
		}
	}
}
