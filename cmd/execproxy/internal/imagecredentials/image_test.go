package imagecredentials

import (
	"strings"
	"testing"
)

func TestParseImage(t *testing.T) {
	for in, want := range map[string]Image{
		"nginx":                            {"docker.io", "", "nginx", true},
		"library/nginx:1.2":                {"docker.io", "", "library/nginx", true},
		"docker.io/library/nginx":          {"docker.io", "", "library/nginx", false},
		"localhost/a":                      {"localhost", "", "a", false},
		"LOCALhost.example/a/b":            {"localhost.example", "", "a/b", false},
		"r.example:5000/a/b:tag":           {"r.example", "5000", "a/b", false},
		"r.example/a@sha256:0123":          {"r.example", "", "a", false},
		"r.example/a:t@sha256:0123":        {"r.example", "", "a", false},
		"[2001:db8::1]:5000/a":             {"[2001:db8::1]", "5000", "a", false},
		"[::1]/a":                          {"[::1]", "", "a", false},
		"123456789012.dkr.ecr.x.aws.com/a": {"123456789012.dkr.ecr.x.aws.com", "", "a", false},
	} {
		if got, err := ParseImage(in); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "/", "r.example/", "https://r.example/a", "user:pw@r.example/a", "r.example:0/a", "r.example:99999/a", "r.example:+1/a", "r.example:/a",
		"r.example/A", "r.example/a/../b", "r.example//a", "r.example/a@", "r..example/a", ".example/a", "r.example%2f.x/a", "r.example/a?x", "r.example/a#x",
		"-r.example/a", "r.exa mple/a", "r.example\n/a", "[::1/a", "r.example/a b", strings.Repeat("a.", 200) + "example/a",
	} {
		if got, err := ParseImage(in); err == nil {
			t.Errorf("%q was read as %+v", in, got)
		}
	}
}

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, image string
		want           bool
	}{
		{"r.example", "r.example/a", true},
		{"R.Example/", "r.example/a", true},
		{"r.example", "r.example:443/a", false},
		{"r.example:5000", "r.example:5000/a", true},
		{"r.example", "x.r.example/a", false},
		{"*.example.com", "a.example.com/b", true},
		{"*.example.com", "a.b.example.com/b", false},
		{"*.example.com", "example.com/b", false},
		{"app*.example.com", "app1.example.com/b", true},
		{"app*.example.com", "xapp1.example.com/b", false},
		{"a*b*c.example", "aXbYc.example/b", true},
		{"a*b*c.example", "abc.example/b", true},
		{"a*b*c.example", "ac.example/b", false},
		{"a*a.example", "a.example/b", false},
		{"r.example/team", "r.example/team", true},
		{"r.example/team", "r.example/team/a", true},
		{"r.example/team/", "r.example/team/a", true},
		{"r.example/team", "r.example/teammate", false},
		{"r.example/team", "r.example/a/team", false},
		{"docker.io", "nginx", true},
		{"docker.io", "index.docker.io/library/nginx", true},
		{"docker.io/library", "library/nginx", true},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		im, err := ParseImage(strings.ToLower(c.image))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Matches(im); got != c.want {
			t.Errorf("%s matches %s: %t", c.pattern, c.image, got)
		}
	}
	for _, in := range []string{"", "*", "*.*", "https://r.example", "r.example:x", "r.example:", "r.example/A", "r..example", "r.example/*", "r ex"} {
		if p, err := ParsePattern(in); err == nil {
			t.Errorf("%q was read as %s", in, p)
		}
	}
}

func FuzzParseImage(f *testing.F) {
	for _, s := range []string{"nginx", "r.example:5000/a/b:tag@sha256:00", "[::1]:5000/a", "user:pw@r.example/a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		im, err := ParseImage(s)
		if err != nil {
			return
		}
		// Written out, it is the same image, and its registry has nothing of a URL.
		if im.Host == "" || im.Path == "" || strings.ContainsAny(im.Registry(), "/@?#% \\") {
			t.Fatalf("%q was read as %+v", s, im)
		}
		again, err := ParseImage(im.Registry() + "/" + im.Path)
		again.implied = im.implied
		if err != nil || again != im {
			t.Fatalf("%q was read as %+v, and that as %+v, %v", s, im, again, err)
		}
	})
}

func FuzzParsePattern(f *testing.F) {
	f.Add("*.example.com:5000/team", "a.example.com:5000/team/x")
	f.Fuzz(func(t *testing.T, pattern, image string) {
		p, err := ParsePattern(pattern)
		if err != nil {
			return
		}
		again, err := ParsePattern(p.String())
		if err != nil || again.String() != p.String() {
			t.Fatalf("%q was read as %s, and that as %s, %v", pattern, p, again, err)
		}
		if im, err := ParseImage(image); err == nil && p.Matches(im) != again.Matches(im) {
			t.Fatalf("%s and %s differ on %q", p, again, image)
		}
	})
}
