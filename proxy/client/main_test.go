package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execproxy/execproxy/lockfile"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// The test binary plays the plugin when PLUGIN is set to one of these roles:
//
//	serve     serves on SOCKET in the foreground until the client's lock is free
//	deaf      the same, but does not care about the lock
//	detach    starts serve in a process of its own and exits
//	file      prints the file DOCUMENT
//	leave     the same, and leaves a process behind that has its pipes
//	fail      writes STDOUT and STDERR and exits with 1
//	hang      writes STDERR and does not end
//
// Each run adds a byte to the file COUNT.
const roleVariable = "CLIENT_TEST_PLUGIN"

// fastExit keeps the race detector from a second of sleep at the end of each process.
const fastExit = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func play(role string) error {
	if name := os.Getenv("COUNT"); name != "" {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		if _, err := f.Write([]byte{'.'}); err != nil {
			return err
		}
		_ = f.Close()
	}
	self := func(role string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVariable+"="+role, "COUNT=", "QUIET=yes")
		return cmd
	}
	switch role {
	case "serve", "deaf":
		return serve(role == "deaf")
	case "detach":
		cmd := self("serve")
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		cred, err := clientauthentication.DecodeAnswer(out)
		if err != nil {
			return err
		}
		data, err := cred.Encode()
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(data)
		return err
	case "file", "leave":
		if role == "leave" {
			cmd := self("hang")
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			if err := cmd.Start(); err != nil {
				return err
			}
		}
		data, err := os.ReadFile(os.Getenv("DOCUMENT"))
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(data)
		return err
	case "fail":
		fmt.Fprint(os.Stdout, os.Getenv("STDOUT"))
		if os.Getenv("STDERR") == "" {
			os.Exit(0)
		}
		return errors.New(os.Getenv("STDERR"))
	case "hang":
		fmt.Fprintln(os.Stderr, os.Getenv("STDERR"))
		time.Sleep(time.Hour)
	}
	return errors.New("no such role")
}

// serve is a proxy that answers every request itself.
func serve(deaf bool) error {
	cred, err := clientauthentication.DecodeInfo([]byte(os.Getenv(clientauthentication.InfoVariable)))
	if err != nil {
		return err
	}
	parent, err := lockfile.Open(cred.Spec.LockFilePath)
	if err != nil {
		return err
	}
	defer parent.Close()
	if name := os.Getenv("LIFE"); name != "" { // held as long as this lives
		if _, err := lockfile.Create(name); err != nil {
			return err
		}
	}
	socket := os.Getenv("SOCKET")
	_ = os.Remove(socket)
	a, err := newAuthority()
	if err != nil {
		return err
	}
	p, err := listen(socket, a, a, "k8s.example", nil)
	if err != nil {
		return err
	}
	defer p.close()
	cred.Status = a.status(socket, time.Now().Add(4*time.Minute))
	data, err := cred.Encode()
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write(data); err != nil {
		return err
	}
	if os.Getenv("QUIET") == "" {
		fmt.Println("a proxy may go on writing") // to no effect
	}
	if deaf {
		time.Sleep(time.Hour)
	}
	return parent.Wait(context.Background())
}

// A proxy answers requests on a socket with what it saw of them.
type proxy struct {
	server *http.Server
	served chan struct{}
	conns  atomic.Int32
}

// seen is what a proxy answers.
type seen struct {
	PID, Conns                            int
	Proto, Host, Path, Body, Client, Info string
}

func listen(socket string, ours, clients *authority, name string, change func(*tls.Config)) (*proxy, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	leaf, err := ours.issue(name, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, err
	}
	p := &proxy{served: make(chan struct{})}
	config := &tls.Config{
		Certificates: []tls.Certificate{leaf},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    clients.pool(),
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if change != nil {
		change(config)
	}
	p.server = &http.Server{
		TLSConfig: config,
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				p.conns.Add(1)
			}
		},
		ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := seen{PID: os.Getpid(), Conns: int(p.conns.Load()), Proto: r.Proto, Host: r.Host, Path: r.URL.Path}
			s.Info = os.Getenv(clientauthentication.InfoVariable)
			if certs := r.TLS.PeerCertificates; len(certs) > 0 {
				s.Client = certs[0].Subject.CommonName
			}
			body, _ := io.ReadAll(r.Body)
			s.Body = string(body)
			if r.URL.Path == "/redirect" {
				http.Redirect(w, r, "https://elsewhere.example/", http.StatusFound)
				return
			}
			_ = json.NewEncoder(w).Encode(s)
		}),
	}
	go func() {
		defer close(p.served)
		_ = p.server.Serve(tls.NewListener(l, config))
	}()
	return p, nil
}

func (p *proxy) close() {
	_ = p.server.Close()
	<-p.served
}

// A bench is a plugin in a role, and what it works with.
type bench struct {
	t                       testing.TB
	dir                     string
	socket, count, document string
}

func newBench(t testing.TB) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "c") // short: socket paths must be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &bench{t: t, dir: dir, socket: filepath.Join(dir, "s"), count: filepath.Join(dir, "count"), document: filepath.Join(dir, "doc")}
}

// client returns a client of a plugin in that role.
func (b *bench) client(role string, change ...func(*Options)) *Client {
	b.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	o := Options{
		Command: exe,
		Env: append(os.Environ(), roleVariable+"="+role, fastExit, "SOCKET="+b.socket, "COUNT="+b.count, "DOCUMENT="+b.document,
			clientauthentication.InfoVariable+"=of somebody else"),
		Cluster: clientauthentication.Cluster{Server: "https://k8s.example:6443"},
	}
	for _, f := range change {
		f(&o)
	}
	c, err := New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

func env(pairs ...string) func(*Options) {
	return func(o *Options) { o.Env = append(o.Env, pairs...) }
}

// executions is how often the plugin was run.
func (b *bench) executions(want int) {
	b.t.Helper()
	data, err := os.ReadFile(b.count)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	if len(data) != want {
		b.t.Errorf("the plugin was executed %d times, want %d", len(data), want)
	}
}

// answer makes what the plugin in the role of file prints.
func (b *bench) answer(s *clientauthentication.Status) {
	b.t.Helper()
	data, err := json.Marshal(&clientauthentication.ExecCredential{APIVersion: clientauthentication.V1, Kind: clientauthentication.Kind, Status: s})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.document, data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// listen serves on the bench's socket in this process.
func (b *bench) listen(ours, clients *authority, change func(*tls.Config)) *proxy {
	b.t.Helper()
	p, err := listen(b.socket, ours, clients, "k8s.example", change)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(p.close)
	return p
}

func get(c *Client, path string) (*seen, error) {
	r, err := http.NewRequest("GET", "https://k8s.example:6443"+path, nil)
	if err != nil {
		return nil, err
	}
	return do(c, r)
}

func do(c *Client, r *http.Request) (*seen, error) {
	resp, err := (&http.Client{Transport: c.RoundTripper()}).Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	s := new(seen)
	return s, json.NewDecoder(resp.Body).Decode(s)
}

func (b *bench) get(c *Client, path string) *seen {
	b.t.Helper()
	s, err := get(c, path)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func mustSay(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	if strings.Contains(err.Error(), "PRIVATE KEY") {
		t.Errorf("a key in an error: %q", err)
	}
}
