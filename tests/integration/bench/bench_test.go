//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
)

// The bench starts itself once more, as the API server.
func TestMain(m *testing.M) {
	if played, err := play(); played {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestSmoke runs everything for a blink, with the proxies that are installed,
// and judges no figure.
func TestSmoke(t *testing.T) {
	programs, err := kubebin.Find()
	if err != nil {
		t.Fatal(err)
	}
	root, err := kubebin.Root()
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile("")
	o := options{kubectl: programs["kubectl"], awsProxy: "aws-sigv4-proxy", only: all, wanted: all}
	o.smoke()
	// Short, because the path of a Unix socket is.
	if o.dir, err = os.MkdirTemp("/tmp", "epb"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(o.dir) }()
	o.execproxy = filepath.Join(t.TempDir(), "built")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", o.execproxy, "./cmd/execproxy")
	build.Dir = filepath.Join(root, "../..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building execproxy: %v\n%s", err, out)
	}

	var out bytes.Buffer
	if err := run(t.Context(), o, slog.New(slog.NewTextHandler(testWriter{t}, nil)), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	_, table, ok := strings.Cut(out.String(), "### Goals")
	if !ok {
		t.Fatalf("no goals:\n%s", out.String())
	}
	absent := []string{nameSigV4Pxy}
	for program, name := range map[string]string{"nginx": nameNginx, "haproxy": nameHAProxy} {
		if _, err := installed(program, program); err != nil {
			absent = append(absent, name)
		}
	}
	for line := range strings.Lines(table) {
		if strings.Contains(line, "not measured") && !containsAny(line, absent) {
			t.Errorf("not measured: %s", line)
		}
		if containsAny(line, []string{"NaN", "Inf"}) {
			t.Errorf("no figure: %s", line)
		}
	}
	for _, l := range loads {
		if !strings.Contains(strings.ToLower(out.String()), strings.ToLower("### "+l.name)) {
			t.Errorf("no table of %s", l.name)
		}
	}
	for _, title := range []string{"### Cost of more", "### All in one", "### 250 idle watches", "### The plugin", "### SigV4 signature", "### `kubectl get`"} {
		if !strings.Contains(out.String(), title) {
			t.Errorf("no table %q", title)
		}
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(lines) == 0 {
		t.Fatalf("reading /proc: %v", err)
	}
	for _, name := range lines {
		if line, err := os.ReadFile(name); err == nil && bytes.Contains(line, []byte(o.dir)) {
			t.Errorf("left running, %s: %q", filepath.Dir(name), line)
		}
	}
}

// TestClientChecks: a load that gets something else than it asked for must fail,
// or the bench would praise a proxy for answers that it does not give.
func TestClientChecks(t *testing.T) {
	b := &bench{options: options{dir: t.TempDir()}}
	up, err := startUpstream(t.Context(), b.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer up.stop()
	b.up = up
	known, err := b.direct(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config, err := b.identity()
	if err != nil {
		t.Fatal(err)
	}
	config.Certificates = nil
	stranger := &target{dial: dialH2("tcp", b.server(), b.server(), config)}

	for _, tc := range []struct {
		name string
		on   *target
		q    request
		want string // "": it works
	}{
		{"small", known, *getSmall, ""},
		{"list", known, *getList, ""},
		{"body", known, *postFour, ""},
		{"length", known, request{method: "GET", path: smallPath, size: smallSize + 1}, "answer 200 of 2048 bytes, want 200 of 2049"},
		{"status", known, request{method: "GET", path: "/nowhere"}, "answer 404"},
		{"nobody", stranger, *getSmall, "answer 401"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := once(t.Context(), tc.on, &tc.q)
			if got := fmt.Sprint(err); tc.want == "" && err != nil || !strings.Contains(got, tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestAnswer(t *testing.T) {
	const signature = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/…"
	for _, tc := range []struct {
		name      string
		head      requestHead
		certified bool
		body      int
		want      int
	}{
		{"certificate", requestHead{method: "GET", path: smallPath, length: -1}, true, 0, 200},
		{"signature", requestHead{method: "GET", path: smallPath, length: -1, authorization: signature}, false, 0, 200},
		{"neither", requestHead{method: "GET", path: smallPath, length: -1, authorization: "Bearer x"}, false, 0, 401},
		{"cut short", requestHead{method: "POST", path: hashedPath, length: 10}, true, 9, 400},
		{"hash", requestHead{method: "POST", path: hashedPath, length: 10, authorization: signature, hash: "ab"}, false, 10, 200},
		{"no hash", requestHead{method: "POST", path: hashedPath, length: 10, authorization: signature, hash: "UNSIGNED-PAYLOAD"}, false, 10, 400},
		{"unsigned", requestHead{method: "POST", path: unsignedPath, length: 10, authorization: signature, hash: "UNSIGNED-PAYLOAD"}, false, 10, 200},
		{"hash instead", requestHead{method: "POST", path: unsignedPath, length: 10, authorization: signature, hash: "ab"}, false, 10, 400},
	} {
		if got := newAPI().answer(&tc.head, tc.certified, tc.body).status; got != tc.want {
			t.Errorf("%s: answer %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestMissingProgram(t *testing.T) {
	_, err := installed("no-such-proxy", "its-package")
	if !errors.Is(err, errMissing) || !strings.Contains(fmt.Sprint(err), "apt-get install its-package") {
		t.Errorf("got %v, want what to install", err)
	}
}

// TestSlowLink: a question and its answer take a round trip, and the first one
// on a connection two.
func TestSlowLink(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	far, err := newSlowLink(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer far.close()
	conn, err := net.Dial("tcp", far.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, least := range []time.Duration{2 * roundWay, roundWay} {
		_ = far.took()
		begin := time.Now()
		if _, err := conn.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		// What the dial took counts, too: the first write comes some time after it.
		if took := time.Since(begin); took < least-roundWay/4 {
			t.Errorf("there and back in %v, want %v", took, least)
		}
	}
}

func containsAny(s string, all []string) bool {
	for _, a := range all {
		if strings.Contains(s, a) {
			return true
		}
	}
	return false
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}
