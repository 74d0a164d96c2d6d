package pin

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]Spec{
		"prompt":                         {Kind: Prompt},
		"file:/run/pin":                  {File, "/run/pin"},
		"file:pin":                       {File, "pin"},
		"file:/a%20b":                    {File, "/a%20b"},
		"file:///run/pin":                {File, "/run/pin"},
		"file://localhost/a%20b":         {File, "/a b"},
		"/run/pin":                       {File, "/run/pin"},
		"/run//x/../pin":                 {File, "/run/pin"},
		"./pin":                          {File, "pin"},
		"../a:b":                         {File, "../a:b"},
		"fd:0":                           {Descriptor, "0"},
		"fd:3":                           {Descriptor, "3"},
		"credential:token.pin":           {Credential, "token.pin"},
		"askpass:/usr/lib/ssh-askpass":   {Askpass, "/usr/lib/ssh-askpass"},
		"askpass:ssh-askpass":            {Askpass, "ssh-askpass"},
		"|/usr/lib/pinomatic":            {Askpass, "/usr/lib/pinomatic"},
		"file:" + strings.Repeat("x", 9): {File, "xxxxxxxxx"},
	} {
		want.Place = filepath.FromSlash(want.Place)
		if want.Kind == Askpass {
			want.Place = filepath.ToSlash(want.Place)
		}
		got, err := Parse(in)
		if runtime.GOOS == "windows" && strings.HasPrefix(in, "/") {
			continue // names no drive
		}
		if err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", in, got, err, want)
		}
	}
	for in, want := range map[string]error{
		"": errSpec, "1234": errSpec, "12/34": errSpec, "prompt:": errSpec, "vault:x": errSpec, "PROMPT": errSpec, "value": errSpec, "value:1234": errSpec,
		"file:": errNoPath, "file:/run/": errNoPath, "file:///": errNoPath, "file://host/run/pin": errHost, "file://%zz": errHost,
		"file:///a?b": errHost, "file://u@localhost/a": errHost, "file:///a%0ab": errHost,
		"fd:": errDescriptor, "fd:1": errDescriptor, "fd:2": errDescriptor, "fd:-1": errDescriptor, "fd:03": errDescriptor, "fd:+3": errDescriptor,
		"fd:3x": errDescriptor, "fd:99999999999999999999": errDescriptor,
		"credential:": errCredential, "credential:..": errCredential, "credential:../pin": errCredential, "credential:" + strings.Repeat("x", 256): errCredential,
		"askpass:": errAskpass, "askpass:/bin/": errAskpass, "|": errAskpass,
		"file:/a\nb": errControl, "file:/a\x00b": errControl, "/" + strings.Repeat("x", 5000): errControl,
	} {
		if got, err := Parse(in); err != want {
			t.Errorf("%q: got %v, %v, want error %v", in, got, err, want)
		}
	}
}

func TestIn(t *testing.T) {
	dir := t.TempDir()
	for in, want := range map[Spec]string{
		{File, "pin"}:           filepath.Join(dir, "pin"),
		{Askpass, "ask"}:        "ask",
		{Credential, "pin"}:     "pin",
		{Descriptor, "3"}:       "3",
		{Kind: Prompt}:          "",
		{File, dir}:             dir,
		{Askpass, "./bin/ask"}:  filepath.Join(dir, "bin/ask"),
		{Askpass, dir + "/ask"}: dir + "/ask",
	} {
		if got := in.In(dir); got.Place != want || got.Kind != in.Kind {
			t.Errorf("%v: got %v, want %s", in, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "prompt", "file:/run/pin", "file:///a%20b", "file://localhost/x", "/run/pin", "./a:b", "fd:3", "credential:a", "askpass:x", "|x", "1234", "file:////"} {
		f.Add(s)
	}
	said := map[error]bool{errSpec: true, errNoPath: true, errHost: true, errDescriptor: true, errCredential: true, errAskpass: true, errControl: true}
	f.Fuzz(func(t *testing.T, in string) {
		spec, err := Parse(in)
		if err != nil {
			if spec != (Spec{}) || !said[err] { // which all are fixed texts
				t.Fatalf("%q: %v, %v", in, spec, err)
			}
			return
		}
		if again, err := Parse(spec.String()); err != nil || again != spec {
			t.Fatalf("%q: %q is read as %q, %v", in, spec, again, err)
		}
		if abs := spec.In("/dir"); abs.Kind != spec.Kind {
			t.Fatalf("%q: %v", in, abs)
		}
	})
}
