package pin

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRefusedFile: a file that was refused is tried again when it changes, however it does.
func TestRefusedFile(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pin"), canary)
	spec, opt := Spec{File, path}, Options{What: what, State: filepath.Join(dir, "state")}
	changes := map[string]func(){
		"replaced":  func() { replace(t, path, canary) },
		"rewritten": func() { write(t, path, canary+"x") },
		"touched":   func() { must(t, os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour))) },
		"by a link": func() {
			must(t, os.Rename(path, path+".2"))
			must(t, os.Symlink(write(t, path+".1", canary), path))
		},
	}
	for name, change := range changes {
		s := New(spec, opt)
		secret(t, s)
		before := time.Now().Add(-time.Second)
		s.Refused()
		fails(t, s, ErrRefused)
		err := fails(t, New(spec, opt), ErrRefused, // another process
			"file "+path+" was refused at ", "Z: write the right one into it (it is tried again when the file changes)")
		_, at, _ := strings.Cut(err.Error(), " was refused at ")
		at, _, _ = strings.Cut(at, ": ")
		if at, err := time.Parse(time.RFC3339, at); err != nil || at.Before(before) || at.After(time.Now()) {
			t.Errorf("refused at %v, %v", at, err)
		}
		// What one token refused may be right for another.
		if got := secret(t, New(spec, Options{What: "PIN of another", State: opt.State})); !strings.HasPrefix(got, canary) {
			t.Errorf("got %q", got)
		}
		change()
		secret(t, s)
		s.Release()
		secret(t, New(spec, opt))
		if s.store.load() != nil {
			t.Errorf("%s: the marker of an earlier state stays", name)
		}
	}
	// Right after all.
	s := New(spec, opt)
	secret(t, s)
	other := New(spec, opt)
	other.last = &tried{file: s.last.file, forget: func() {}}
	other.Refused()
	s.Accepted()
	if s.store.load() != nil {
		t.Error("the marker stays though the home took it")
	}
}

// TestRefusedValue: without a file to tell it by, what was refused is known by a slow hash.
func TestRefusedValue(t *testing.T) {
	opt := Options{What: what, State: t.TempDir(), Value: []byte(canary)}
	spec := Spec{Kind: Value}
	s := New(spec, opt)
	secret(t, s)
	copied := s.last
	s.Refused()
	if d, err := copied.digest(); err != nil || d.is([]byte(canary)) {
		t.Error("the copy that is hashed is not wiped")
	}
	fails(t, New(spec, opt), ErrRefused, "remove "+s.store.marker())
	for path, content := range tree(t, opt.State) {
		hides(t, path+content)
		var m refusal
		must(t, json.Unmarshal([]byte(content), &m))
		if m.Value == nil || m.Value.Iterations != cost || iterations < 600_000 || m.File != nil || m.What != what || m.Where != "the given value" {
			t.Errorf("marker is %s", content)
		}
		other, err := newDigest([]byte(canary))
		must(t, err)
		if bytes.Equal(other.Hash, m.Value.Hash) || bytes.Equal(other.Salt, m.Value.Salt) {
			t.Error("the hash has no salt")
		}
	}
	if got := secret(t, New(spec, Options{What: what, State: opt.State, Value: []byte("4321")})); got != "4321" {
		t.Errorf("another value: got %q", got)
	}
	secret(t, New(spec, opt)) // for the marker of another value is over
}

func TestMarkerFiles(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "a", "state")
	path := write(t, filepath.Join(dir, "pin"), canary)
	opt := Options{What: what, State: state}
	s := New(Spec{File, path}, opt)
	if _, err := os.Stat(state); err == nil {
		t.Error("New writes")
	}
	secret(t, s)
	s.Refused()
	names, err := os.ReadDir(filepath.Join(state, "refused"))
	must(t, err)
	if len(names) != 1 || len(names[0].Name()) != 16 || strings.Trim(names[0].Name(), "0123456789abcdef") != "" {
		t.Fatalf("files: %v", names)
	}
	marker := filepath.Join(state, "refused", names[0].Name())
	if o := ownershipOf(t, marker); o.known && o.mode.Perm() != 0o600 {
		t.Errorf("marker has mode %o", o.mode)
	}
	if o := ownershipOf(t, filepath.Dir(marker)); o.known && o.mode.Perm() != 0o700 {
		t.Errorf("directory has mode %o", o.mode)
	}
	good, err := os.ReadFile(marker)
	must(t, err)
	hides(t, string(good))
	m, err := parseRefusal(good)
	must(t, err)
	info, err := os.Stat(path)
	must(t, err)
	if m.File == nil || m.Value != nil || m.File.Size != info.Size() || m.File.Mtime != info.ModTime().UnixNano() || m.File.Inode == 0 || m.File.Ctime == 0 {
		t.Errorf("marker is %s", good)
	}
	// One that cannot be made out is as good as none, and is replaced.
	for _, bad := range []string{"", "{", "null", "{}", `{"time":"2026-01-02T03:04:05Z"}`, `{"time":"yesterday","file":{}}`,
		`{"time":"2026-01-02T03:04:05Z","value":{"salt":"","iterations":1,"hash":""}}`,
		`{"time":"2026-01-02T03:04:05Z","value":{"salt":"AAAAAAAAAAAAAAAAAAAAAA==","iterations":2000000000,"hash":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}}`,
		strings.Repeat(" ", maxMarker) + string(good)} {
		write(t, marker, bad)
		s := New(Spec{File, path}, opt)
		if m := s.store.load(); m != nil {
			t.Errorf("%.100s is read as %+v", bad, m)
		}
		secret(t, s)
		s.Refused()
		fails(t, New(Spec{File, path}, opt), ErrRefused)
	}
	write(t, marker, string(good))
	fails(t, New(Spec{File, path}, opt), ErrRefused) // so that it was not the test that was wrong
	if left := tree(t, state); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func ownershipOf(t *testing.T, path string) owned {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return ownership(info)
}

// TestNoState: keys work where nothing can be written, and the log says what that means.
func TestNoState(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pin"), canary)
	var log bytes.Buffer
	opt := Options{What: what, State: write(t, filepath.Join(dir, "state"), ""), Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s := New(Spec{File, path}, opt)
	secret(t, s)
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "without keeping other processes from it") {
		t.Errorf("log: %s", &log)
	}
	log.Reset()
	s.Refused()
	if !strings.Contains(log.String(), "cannot be remembered") {
		t.Errorf("log: %s", &log)
	}
	hides(t, log.String())
	fails(t, s, ErrRefused) // this process knows
	opt.State = ""
	s = New(Spec{File, path}, opt)
	secret(t, s)
	s.Refused()
	fails(t, s, ErrRefused)
}

func FuzzMarker(f *testing.F) {
	f.Add([]byte(`{"time":"2026-01-02T03:04:05Z","what":"a","source":"b","file":{"dev":1,"inode":2,"size":3,"mtimeNs":4,"ctimeNs":5}}`))
	f.Add([]byte(`{"time":"2026-01-02T03:04:05Z","value":{"salt":"AAAAAAAAAAAAAAAAAAAAAA==","iterations":1,"hash":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseRefusal(data)
		if err != nil {
			return
		}
		if m.Value != nil && m.Value.Iterations > 1000 {
			return // slow by design
		}
		m.is(reading{value: []byte("x")})
		m.is(reading{file: &identity{}})
	})
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{"", "1234\n", "1234\r\n", "a\nb", "\xef\xbb\xbf1", "a\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		value, problem, cure := line(raw)
		if (problem == "") != (cure == "") {
			t.Fatalf("%q: problem %q, cure %q", raw, problem, cure)
		}
		if problem == "" && (len(value) == 0 || len(value) > maxValue || bytes.ContainsAny(value, "\r\n\x00") || !bytes.HasPrefix(raw, value) || len(raw)-len(value) > 2) {
			t.Fatalf("%q: %q", raw, value)
		}
	})
}
