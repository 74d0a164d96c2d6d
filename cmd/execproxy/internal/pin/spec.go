package pin

import (
	"errors"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
)

// A Kind is a kind of place that a PIN comes from.
type Kind int

// The kinds. What names none is asked for on the terminal.
const (
	Prompt     Kind = iota // the terminal; no place
	File                   // place: a path
	Descriptor             // place: its number
	Credential             // place: its name below $CREDENTIALS_DIRECTORY
	Askpass                // place: a program
	Value                  // a fixed value, [Options].Value; no place
)

var kinds = [...]string{"prompt", "file", "fd", "credential", "askpass", "value"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kinds) {
		return "kind " + strconv.Itoa(int(k))
	}
	return kinds[k]
}

// A Spec names the place that a PIN comes from. It never holds a value.
type Spec struct {
	Kind  Kind
	Place string
}

// String is what Parse reads, but for the Kind Value, which has no such form.
func (s Spec) String() string {
	if s.Place == "" {
		return s.Kind.String()
	}
	return s.Kind.String() + ":" + s.Place
}

// In completes a relative path from dir. A daemon has another directory than the plugin, and
// a kubeconfig names its files from its own.
func (s Spec) In(dir string) Spec {
	named := s.Kind == File || s.Kind == Askpass && filepath.Base(s.Place) != s.Place // else it is looked for in PATH
	if named && !filepath.IsAbs(s.Place) {
		s.Place = filepath.Join(dir, s.Place)
	}
	return s
}

// What Parse says never repeats its input: that may be a PIN by mistake.
var (
	errSpec = errors.New("PIN source: neither an absolute path nor one of file:PATH, fd:N, credential:NAME, askpass:PROGRAM, prompt: " +
		"the PIN itself is not named here, write it into a file of mode 0600 and name that")
	errNoPath     = errors.New("PIN source: file: without a path: write file:PATH")
	errHost       = errors.New("PIN source: file: URI with another host or a malformed path: write file:PATH")
	errDescriptor = errors.New("PIN source: fd: without the number of a descriptor that can be read: write fd:N, with N 0 or from 3 up")
	errCredential = errors.New("PIN source: credential: without a name as systemd has them: write credential:NAME, no path")
	errAskpass    = errors.New("PIN source: askpass: without a program: write askpass:PROGRAM, a path or a name in PATH")
	errControl    = errors.New("PIN source: holds control characters: write it in one line of text")
)

const (
	maxSpec       = 4096 // longer than any path
	maxDescriptor = 1 << 20
)

// Parse reads where a PIN comes from: "file:PATH", a file: URI or a path that begins
// with / or . (RFC 7512, section 2.4, pin-source), "fd:N", "credential:NAME", "askpass:PROGRAM" or RFC
// 7512's "|PROGRAM", "prompt". No error holds any of s.
func Parse(s string) (Spec, error) {
	if len(s) > maxSpec || strings.ContainsFunc(s, unicode.IsControl) {
		return Spec{}, errControl
	}
	if program, ok := strings.CutPrefix(s, "|"); ok {
		return askpassSpec(program)
	}
	kind, place, ok := strings.Cut(s, ":")
	switch {
	case s == "prompt":
		return Spec{Kind: Prompt}, nil
	case ok && kind == "file":
		return fileSpec(place)
	case ok && kind == "fd":
		n, err := strconv.Atoi(place)
		if err != nil || strconv.Itoa(n) != place || n < 0 || n == 1 || n == 2 || n > maxDescriptor {
			return Spec{}, errDescriptor
		}
		return Spec{Descriptor, place}, nil
	case ok && kind == "credential":
		if place == "" || place == "." || place == ".." || len(place) > 255 || strings.ContainsAny(place, `/\:`) {
			return Spec{}, errCredential
		}
		return Spec{Credential, place}, nil
	case ok && kind == "askpass":
		return askpassSpec(place)
	case filepath.IsAbs(s), strings.HasPrefix(s, "./"), strings.HasPrefix(s, "../"):
		return Spec{File, filepath.Clean(s)}, nil
	}
	// Any other word could name a file, and is more likely a PIN: errors would show it.
	return Spec{}, errSpec
}

func fileSpec(place string) (Spec, error) {
	// Other readers of RFC 7512 take what follows "file:" as it is. Only with an authority is
	// it surely a URI, with escapes.
	if strings.HasPrefix(place, "//") {
		u, err := url.Parse("file:" + place)
		if err != nil || u.Host != "" && u.Host != "localhost" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
			strings.ContainsFunc(u.Path, unicode.IsControl) {
			return Spec{}, errHost
		}
		place = drive(u.Path)
	}
	if place == "" || strings.HasSuffix(place, "/") {
		return Spec{}, errNoPath
	}
	return Spec{File, filepath.Clean(place)}, nil
}

// drive takes the slash off /C:/path, where that is a path.
func drive(path string) string {
	if rest, ok := strings.CutPrefix(path, "/"); ok && filepath.VolumeName(rest) != "" {
		return rest
	}
	return path
}

func askpassSpec(program string) (Spec, error) {
	if program == "" || strings.HasSuffix(program, "/") || program == "." || program == ".." {
		return Spec{}, errAskpass
	}
	return Spec{Askpass, program}, nil
}
