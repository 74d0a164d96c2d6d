package config

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestSameServer(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"https://prod", "https://PROD:443/", true},
		{"https://prod:6443", "https://prod:6443/", true},
		{"https://prod:6443/base", "https://prod:6443/base/", true},
		{"https://[::1]", "https://[::1]:443", true},
		{"https://prod", "https://prod:6443", false},
		{"https://prod/a", "https://prod/A", false},
		{"https://prod", "https://dev", false},
		{"https://prod", "http://prod", false},
		{"", "https://prod", false},
		{"%", "%", true},
	} {
		if SameServer(tt.a, tt.b) != tt.same || SameServer(tt.b, tt.a) != tt.same {
			t.Errorf("%q and %q are the same: %v", tt.a, tt.b, !tt.same)
		}
	}
	if got := ShowServer("https://me:hunter2@prod:1/x?token=t"); got != "https://prod:1/x" {
		t.Error(got)
	}
}

// Each source is asked alone: what a weaker one says is not hidden by a stronger.
func TestClaims(t *testing.T) {
	file := writeFile(t, head+"server: https://file\n")
	other := writeFile(t, head+"server: https://other\n")
	all := Sources{
		Environ: env(map[string]string{"EXECPROXY_SERVER": "https://env"}), File: file,
		Extension: json.RawMessage(`{"upstream":{"server":"https://ext"},"config":"` + other + `"}`),
	}
	got, err := Claims(all, "https://flag")
	want := []Claim{{"--server", "https://flag"}, {"EXECPROXY_SERVER", "https://env"}, {"file " + file, "https://file"}, {"exec extension: upstream.server", "https://ext"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	all.File, all.Environ = "", env(map[string]string{"EXECPROXY_CONFIG": file})
	if got, err := Claims(all, ""); err != nil || len(got) != 2 || got[0].Server != "https://file" {
		t.Errorf("a file that the environment names: %v, %v", got, err)
	}
	all.Environ = nil
	if got, err := Claims(all, ""); err != nil || len(got) != 2 || got[1].Server != "https://other" {
		t.Errorf("a file that the extension names: %v, %v", got, err)
	}
	if got, err := Claims(Sources{Extension: json.RawMessage(`{"server":"https://top"}`)}, ""); err != nil || len(got) != 1 || got[0].Server != "https://top" {
		t.Errorf("%v, %v", got, err)
	}
}
