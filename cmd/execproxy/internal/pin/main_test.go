package pin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary, run as another process, plays a role: a program of this project that
// wants the PIN of a token.
const (
	roleVariable  = "PIN_TEST_ROLE"
	specVariable  = "PIN_TEST_SPEC"
	stateVariable = "PIN_TEST_STATE"
	whatVariable  = "PIN_TEST_WHAT"

	// fastExit keeps the race detector from a second of sleep at the end of each process.
	fastExit = "GORACE=atexit_sleep_ms=0"
)

// canary is the value that nothing may show.
const canary = "canary-70f2"

const what = "PIN of token execproxy (pkcs11)"

func TestMain(m *testing.M) {
	cost = 1000
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			say("failed: %v", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// play does what the lines of stdin say, and says what came of each.
func play(role string) error {
	spec, err := Parse(os.Getenv(specVariable))
	if err != nil {
		return err
	}
	s := New(spec, Options{What: os.Getenv(whatVariable), State: os.Getenv(stateVariable), Terminal: true})
	s.waiting = func() { say("waiting") }
	defer s.Close()
	say("ready")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lines := bufio.NewScanner(os.Stdin)
	switch role {
	case "two":
		return playTwo()
	case "cancelled": // by the first line
		go func() { lines.Scan(); cancel() }()
		return trySecret(ctx, s)
	case "asks":
		return trySecret(ctx, s)
	}
	for lines.Scan() {
		switch lines.Text() {
		case "secret":
			if err := trySecret(ctx, s); err != nil {
				return err
			}
		case "refused":
			s.Refused()
			say("told")
		case "accepted":
			s.Accepted()
			say("told")
		}
	}
	return lines.Err()
}

// playTwo starts two that ask on one terminal.
func playTwo() error {
	var both []*exec.Cmd
	for _, name := range []string{"PIN of one", "PIN of the other"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVariable+"=asks", whatVariable+"="+name)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		both = append(both, cmd)
	}
	return errors.Join(both[0].Wait(), both[1].Wait())
}

// trySecret says what Secret returns; only a test's stdout ever shows a value.
func trySecret(ctx context.Context, s *Source) error {
	value, err := s.Secret(ctx)
	switch {
	case errors.Is(err, ErrInterrupted):
		say("interrupted: %v", err)
	case errors.Is(err, ErrRefused):
		say("refused: %v", err)
	case err != nil:
		say("error: %v", err)
	default:
		say("try %q human %v", value, s.Human())
	}
	return nil
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// player is the test binary in a role of its own.
type player struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  chan string
}

// start runs a role; it has said "ready" when start returns.
func start(t *testing.T, role, spec, state string, change ...func(*exec.Cmd)) *player {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, specVariable+"="+spec, stateVariable+"="+state, whatVariable+"="+what, fastExit)
	cmd.Stderr = os.Stderr
	for _, f := range change {
		f(cmd)
	}
	p := &player{t: t, cmd: cmd, said: make(chan string, 64)}
	p.stdin, err = cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	go func() {
		defer close(p.said)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.said <- lines.Text()
		}
	}()
	t.Cleanup(p.end)
	p.expect("ready")
	return p
}

func (p *player) tell(line string) {
	p.t.Helper()
	_, err := io.WriteString(p.stdin, line+"\n")
	must(p.t, err)
}

// next is the next line that the process says.
func (p *player) next() string {
	p.t.Helper()
	select {
	case line, ok := <-p.said:
		if !ok {
			p.t.Fatal("the process is gone")
		}
		return line
	case <-time.After(30 * time.Second):
		p.t.Fatal("the process says nothing")
	}
	return ""
}

func (p *player) expect(prefix string) string {
	p.t.Helper()
	line := p.next()
	if !strings.HasPrefix(line, prefix) {
		p.t.Fatalf("process said %q, want %q", line, prefix)
	}
	return line
}

// end ends the process, and waits for it.
func (p *player) end() {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.stdin.Close()
	_ = p.cmd.Process.Kill()
	for range p.said { // Wait closes what is still being read
	}
	_ = p.cmd.Wait()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes a file, mode 0600.
func write(t testing.TB, path, content string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// replace puts another file in place of path: other than a write in the same instant it is
// surely another one.
func replace(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.Rename(write(t, path+".new", content), path))
}

func secret(t testing.TB, s *Source) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	value, err := s.Secret(ctx)
	must(t, err)
	return string(value)
}

// fails is the error of a Source that must have one.
func fails(t testing.TB, s *Source, want error, texts ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	value, err := s.Secret(ctx)
	switch {
	case err == nil:
		t.Fatalf("%v: got %q, want an error", s, value)
	case !errors.Is(err, want):
		t.Errorf("%v: got error %v, want %v", s, err, want)
	case value != nil:
		t.Errorf("%v: got a value beside the error", s)
	}
	for _, text := range append(texts, s.what+": ") {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error is %q, want %q in it", err, text)
		}
	}
	if text := err.Error(); strings.ContainsAny(text, "\n\r") || strings.Contains(text, ": : ") || strings.HasSuffix(text, ": ") {
		t.Errorf("error is no line: %q", text)
	}
	hides(t, err.Error())
	return err
}

func hides(t testing.TB, text string) {
	t.Helper()
	if strings.Contains(text, canary) {
		t.Errorf("shows the value: %q", text)
	}
}

// tree is all that stands below dir.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	}))
	return all
}
