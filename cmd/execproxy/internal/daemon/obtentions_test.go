package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestObtentions(t *testing.T) {
	var o obtentions
	now := time.Now()
	o.count(Ask{Provider: "fleet", Began: now}, nil)
	o.count(Ask{Provider: "fleet", Began: now.Add(-3 * time.Second)}, nil)
	o.count(Ask{Provider: "fleet", Began: now.Add(-time.Hour)}, errors.New("no"))
	o.count(Ask{Began: now}, nil)
	o.count(Ask{}, nil) // of a plugin that did not say since when
	o.count(Ask{Provider: "fleet"}, fmt.Errorf("x: %w", errEnding))
	var b bytes.Buffer
	o.write(&b)
	for _, want := range []string{
		`execproxy_obtentions_total{provider="fleet",result="success"} 2`,
		`execproxy_obtentions_total{provider="fleet",result="error"} 1`,
		`execproxy_obtentions_total{provider="none",result="success"} 2`,
		`execproxy_obtentions_total{provider="none",result="error"} 0`,
		`execproxy_obtention_duration_seconds_bucket{provider="fleet",result="success",le="2.5"} 1`,
		`execproxy_obtention_duration_seconds_bucket{provider="fleet",result="success",le="5"} 2`,
		`execproxy_obtention_duration_seconds_bucket{provider="fleet",result="error",le="30"} 0`,
		`execproxy_obtention_duration_seconds_bucket{provider="fleet",result="error",le="+Inf"} 1`,
		`execproxy_obtention_duration_seconds_count{provider="none",result="success"} 1`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
	s := o.status()
	if len(s) != 2 || s[0].Provider != "fleet" || s[0].Success != 2 || s[0].Error != 1 || s[0].Seconds < 3603 || s[1].Provider != "none" || s[1].Success != 2 {
		t.Errorf("%+v", s)
	}
}

// Whoever may ask may say any name; there are only so many labels, and none that is
// not a name.
func TestObtentionsAreBounded(t *testing.T) {
	var o obtentions
	for i := range 1000 {
		o.count(Ask{Provider: fmt.Sprint("p", i)}, nil)
	}
	o.count(Ask{Provider: "a\"\n"}, nil)
	s := o.status()
	if len(s) != mostProviders+1 {
		t.Errorf("%d names", len(s))
	}
	if i := len(s); s[0].Provider != otherProviders || s[0].Success != 1000-mostProviders+1 {
		t.Errorf("%+v", s[:min(i, 2)])
	}
}

func TestFigures(t *testing.T) {
	arrived := time.Now()
	q, err := url.ParseQuery((&Ask{Provider: "a/b c", Began: arrived.Add(-time.Second)}).figures())
	if err != nil {
		t.Fatal(err)
	}
	if p, began := askedBy(q, arrived); p != "a/b c" || arrived.Sub(began) < time.Second || arrived.Sub(began) > time.Minute {
		t.Errorf("%q, %v", p, arrived.Sub(began))
	}
	for _, elapsed := range []string{"", "soon", "-1s", "9999h", "1e400s"} {
		if _, began := askedBy(url.Values{"elapsed": {elapsed}}, arrived); !began.IsZero() {
			t.Errorf("%q: %v", elapsed, began)
		}
	}
}

// What failed before there was a proxy is counted by the first that starts.
func TestFailuresAreRemembered(t *testing.T) {
	path := failurePath(Places{State: t.TempDir()}, "cafe")
	noteFailure(path, "fleet")
	noteFailure(path, "fleet")
	noteFailure(path, "")
	if fi, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && fi.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v", fi, err)
	}
	var o obtentions
	o.recall(path)
	want := []Obtention{{Provider: "fleet", Error: 2}, {Provider: noProvider, Error: 1}}
	if got := o.status(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	o.recall(path) // it is gone: nothing is counted twice
	if got := o.status(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for i := range 1000 {
		noteFailure(path, fmt.Sprint("p", i))
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() > 4096 {
		t.Errorf("%v, %v", fi, err)
	}
	for _, text := range []string{"", "null", "{", `{"a":-1}`, `{"a":"b"}`, strings.Repeat(" ", 1<<20)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := failures(path); len(got) != 0 || got == nil {
			t.Errorf("%.20q: %v", text, got)
		}
	}
	_ = os.Remove(path)
	if err := os.Symlink(filepath.Join(t.TempDir(), "x"), path); err == nil && len(failures(path)) != 0 {
		t.Error("a link was followed")
	}
}

func FuzzFigures(f *testing.F) {
	f.Add("provider=a&elapsed=1s", `{"a":1}`)
	f.Add("elapsed=-1s&provider=%00", `{"":18446744073709551615}`)
	f.Fuzz(func(t *testing.T, query, noted string) {
		q, _ := url.ParseQuery(query)
		arrived := time.Now()
		provider, began := askedBy(q, arrived)
		if began.After(arrived) {
			t.Errorf("began %v after it came", began.Sub(arrived))
		}
		path := filepath.Join(t.TempDir(), "failed")
		if err := os.WriteFile(path, []byte(noted), 0o600); err != nil {
			t.Fatal(err)
		}
		var o obtentions
		o.recall(path)
		o.count(Ask{Provider: provider, Began: began}, nil)
		var b bytes.Buffer
		o.write(&b)
		for line := range strings.Lines(b.String()) {
			if name, _, ok := strings.Cut(line, "{provider=\""); !ok || !strings.HasPrefix(name, "execproxy_obtention") || strings.Count(line, `"`)%2 != 0 || strings.Contains(line, `\`) {
				t.Errorf("not a line of metrics: %q", line)
			}
		}
		if n := len(o.status()); n > mostProviders+1 {
			t.Errorf("%d names", n)
		}
	})
}
