package header

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
)

const canary = "canary-secret"

var _ signer.RequestSigner = (*Signer)(nil)

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// age puts a file's times back, always to the same, so that what was read of it is trusted.
func age(t testing.TB, path string) {
	t.Helper()
	old := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

func fields(t testing.TB, s *Signer) http.Header {
	t.Helper()
	h, err := s.SignRequest(t.Context(), &signer.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "Bearer "+canary+"\r\n")
	s, err := New([]string{"x-tenant=blue", "X-Tenant= green\t", "Authorization=@" + path, "X-At=@@home", "X-Eq=a=b=", "X-Word=füß"})
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{"X-Tenant": {"blue", "green"}, "Authorization": {"Bearer " + canary}, "X-At": {"@home"}, "X-Eq": {"a=b="}, "X-Word": {"füß"}}
	for range 2 {
		h := fields(t, s)
		if !reflect.DeepEqual(h, want) {
			t.Errorf("got %v, want %v", h, want)
		}
		h.Set("X-Tenant", "red") // the map is the caller's
		h["X-At"][0] = "changed"
	}
	for _, verb := range []string{"%v", "%+v", "%#v"} {
		if got := fmt.Sprintf(verb, s); got != "headers X-Tenant, X-Tenant, Authorization, X-At, X-Eq, X-Word" {
			t.Errorf("%s prints %s", verb, got)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "empty"), "\n")
	write(t, filepath.Join(dir, "lines"), canary+"\n"+canary+"\n")
	write(t, filepath.Join(dir, "two-ends"), canary+"\n\n")
	write(t, filepath.Join(dir, "nul"), canary+"\x00")
	write(t, filepath.Join(dir, "long"), strings.Repeat(canary, maxValue))
	for spec, want := range map[string]string{
		"":                                      "want Name=value",
		canary:                                  "want Name=value",
		"Authorization: Bearer " + canary + "=": "not a ':'",
		"=" + canary:                            "want Name=value",
		"X-A=":                                  "is empty",
		"X-A= \t":                               "is empty",
		"X-A=@":                                 "no file name",
		"X-A=" + canary + "\n":                  "more than one line",
		"X-A=" + canary + "\r\nX-B: c":          "more than one line",
		"X-A=" + canary + "\x7f":                "control character",
		"Host=x":                                "Host is the server's name",
		"connection=close":                      "Connection belongs to the connection",
		"te=trailers":                           "Te belongs to the connection",
		"Transfer-Encoding=chunked":             "belongs to the connection",
		"Content-Length=1":                      "belongs to each request",
		"content-type=text/plain":               "belongs to each request",
		"Proxy-Authorization=" + canary:         "belongs to each request",
		"Sec-WebSocket-Key=x":                   "belongs to each request",
		"X-A=@" + dir + "/absent":               dir + "/absent: ",
		"X-A=@" + dir + "/empty":                "is empty",
		"X-A=@" + dir + "/lines":                "more than one line",
		"X-A=@" + dir + "/two-ends":             "more than one line",
		"X-A=@" + dir + "/nul":                  "control character",
		"X-A=@" + dir + "/long":                 "is longer than",
		"X-A=@" + dir:                           "not a regular file",
	} {
		_, err := New([]string{"X-Ok=fine", spec})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %s", spec, err, want)
		} else if strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: the error shows the value: %v", spec, err)
		}
	}
	if _, err := New(nil); err == nil || !strings.Contains(err.Error(), "--header") {
		t.Errorf("no fields: %v", err)
	}
}

// TestFileChanges: every way in which a token file gets a new value.
func TestFileChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	write(t, path, "one")
	s, err := New([]string{"X-A=@" + path})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		change     func()
	}{
		{"written in place", "two", func() { write(t, path, "two\n") }},
		{"same size, within the clock's tick", "six", func() {
			now := time.Now()
			for _, value := range []string{"one\n", "six\n"} {
				write(t, path, value)
				if err := os.Chtimes(path, now, now); err != nil {
					t.Fatal(err)
				}
				fields(t, s)
			}
		}},
		{"renamed over", "seven", func() {
			write(t, path+".new", "seven")
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}},
		{"renamed over, with the same size and times", "eight", func() {
			age(t, path)
			fields(t, s)
			write(t, path+".new", "eight")
			age(t, path+".new")
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}},
		{"longer, with the same time", "eighteen", func() {
			age(t, path)
			fields(t, s)
			write(t, path, "eighteen")
			age(t, path)
		}},
	} {
		tc.change()
		for range 2 {
			if got := fields(t, s).Get("X-A"); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
			}
		}
	}
	// A file that did not change is not read again.
	age(t, path)
	fields(t, s)
	if s.fields[0].file.info == nil {
		t.Error("an old file is not remembered")
	}
}

// TestFileGoesBad: the old value is not used, and a good file is used again.
func TestFileGoesBad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, canary)
	age(t, path)
	s, err := New([]string{"X-A=@" + path})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"gone":      func() { os.Remove(path) },
		"empty":     func() { write(t, path, "") },
		"two lines": func() { write(t, path, canary+"\n"+canary) },
	} {
		change()
		for range 2 {
			h, err := s.SignRequest(t.Context(), &signer.Request{})
			var bad *FileError
			if !errors.As(err, &bad) || bad.Path != path || bad.Name != "X-A" || bad.StatusCode() != http.StatusServiceUnavailable || h != nil {
				t.Errorf("%s: got %v, %v", name, h, err)
			} else if strings.Contains(err.Error(), canary) || strings.Count(err.Error(), path) != 1 {
				t.Errorf("%s: %v", name, err)
			}
			if name == "gone" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v is not fs.ErrNotExist", err)
			}
		}
		write(t, path, "good")
		if got := fields(t, s).Get("X-A"); got != "good" {
			t.Errorf("after %s: got %s", name, got)
		}
	}
}

// FuzzNew: what is accepted can be sent as it is, and errors show no value.
func FuzzNew(f *testing.F) {
	for _, s := range []string{"X-A=b", "X-A=@@b", "Host=x", "a: b=c", "X-A=\tb\r\n", "=", "X=\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		if name, path, ok := strings.Cut(spec, "=@"); ok && !strings.HasPrefix(path, "@") && !strings.Contains(name, "=") {
			t.Skip("a file of this machine")
		}
		s, err := New([]string{spec})
		if err != nil {
			if _, value, ok := strings.Cut(spec, "="); ok && len(value) > 20 && strings.Contains(err.Error(), value) {
				t.Errorf("%q: the error shows the value: %v", spec, err)
			}
			return
		}
		for name, values := range fields(t, s) {
			req, err := http.NewRequest("GET", "http://x/", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header[name] = values
			var wire strings.Builder
			if err := req.Write(&wire); err != nil {
				t.Fatal(err)
			}
			if len(values) != 1 || !strings.Contains(wire.String(), "\r\n"+name+": "+values[0]+"\r\n") {
				t.Errorf("%q: on the wire %q", spec, wire.String())
			}
		}
	})
}

func BenchmarkSignRequest(b *testing.B) {
	path := filepath.Join(b.TempDir(), "token")
	write(b, path, canary)
	age(b, path)
	for name, spec := range map[string]string{"value": "X-A=b", "file": "X-A=@" + path} {
		s, err := New([]string{spec})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fields(b, s)
			}
		})
	}
}

func ExampleNew() {
	s, err := New([]string{"X-Tenant=blue", "X-Role=reader", "X-Role=writer"})
	if err != nil {
		fmt.Println(err)
		return
	}
	h, err := s.SignRequest(context.Background(), &signer.Request{})
	fmt.Println(h, err)
	// Output: map[X-Role:[reader writer] X-Tenant:[blue]] <nil>
}
