// Package execproxy_test holds the rules of the house that no compiler checks:
// which package may import which, and what a library may not do.
package execproxy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/execproxy/execproxy"

// room is one row of the table in ARCHITECTURE.md.
type room struct {
	holds  string
	ours   []string // packages below the module; "libraries" for all outside cmd
	others []string // import path prefixes; "any"
}

// pkg is what `go list` tells about a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Module     *struct{ Path string }
	Imports    []string
	Deps       []string
	GoFiles    []string
}

// far are rules about everything a package links, however far away.
var far = []struct {
	within  []string // package prefixes below the module
	except  []string
	forbids string // import path prefix
	because string
}{
	{[]string{"proxy", "signer", "lockfile", "transport"}, []string{"signer/signertest", "proxy/client/clientgo"}, "flag", // klog links it
		"libraries read no flags"},
	{[]string{"proxy", "signer", "lockfile", "transport"}, nil, "github.com/spf13/",
		"libraries read no flags"},
	{[]string{"proxy", "lockfile", "transport"}, nil, "github.com/aws/",
		"only a signing scheme speaks to AWS; the way of a request does not know who signs"},
	{[]string{"signer"}, []string{"signer/sigv4"}, "github.com/aws/",
		"only signer/sigv4 speaks to AWS; other schemes must not pay for its SDK"},
	{[]string{"proxy", "signer", "lockfile", "transport"}, []string{"proxy/client/clientgo"}, "k8s.io/",
		"the libraries speak the standard library's types; a program that uses one must not get all of Kubernetes"},
	{[]string{""}, nil, "k8s.io/kubernetes",
		"k8s.io/kubernetes is not made to be imported; its programs are built by tests/integration/kube"},
	{[]string{""}, []string{"signer/signertest"}, "testing",
		"the product must not link the test framework and its flags"}, // signertest is for tests, as net/http/httptest is
	{[]string{""}, []string{"signer/signertest"}, module + "/signer/signertest",
		"the conformance suite is for tests alone; it brings the test framework along"},
	{[]string{"proxy/clientauthentication"}, nil, "net/http",
		"the wire types are text in, text out"},
	{[]string{"lockfile", "proxy/clientauthentication"}, nil, "crypto/tls",
		"these packages have no connection to secure"},
}

func TestImports(t *testing.T) {
	rooms := readRooms(t)
	// A passing test is cached by the files it looked at, and go list looks from another process.
	for _, file := range goFiles(t, ".") {
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	// What a package imports differs by system; one processor stands for all of its kind.
	// With cgo there is more than without.
	for _, on := range [][]string{
		{"GOOS=linux", "CGO_ENABLED=0"}, {"GOOS=linux", "CGO_ENABLED=1"},
		{"GOOS=darwin", "CGO_ENABLED=0"}, {"GOOS=windows", "CGO_ENABLED=0"},
	} {
		for _, p := range goList(t, on...) {
			seen[p.ImportPath] = true
			for _, complaint := range check(rooms, p) {
				t.Errorf("%s: %s", on, complaint)
			}
		}
	}
	for name := range rooms {
		if !seen[module+"/"+name] {
			t.Errorf("%s: a room without a package: ARCHITECTURE.md lists it, the module has none", name)
		}
	}
}

// check returns what is wrong with the imports of p.
func check(rooms map[string]room, p pkg) (complaints []string) {
	name, ok := strings.CutPrefix(p.ImportPath, module+"/")
	if !ok || len(p.GoFiles) == 0 {
		return nil // the root and others that hold tests alone
	}
	r, ok := rooms[name]
	if !ok {
		return []string{fmt.Sprintf("%s: a package without a room: put its code where it belongs, or give it a row in ARCHITECTURE.md", name)}
	}
	for _, imp := range p.Imports {
		if sibling, ours := strings.CutPrefix(imp, module+"/"); ours {
			if !r.allowsOurs(sibling) {
				complaints = append(complaints, fmt.Sprintf("%s imports %s: its room is for %q and may import of ours only %s",
					name, sibling, r.holds, list(r.ours)))
			}
		} else if !standard(imp) && !r.allowsOther(imp) {
			complaints = append(complaints, fmt.Sprintf("%s imports %s: its room is for %q and may import of others only %s",
				name, imp, r.holds, list(r.others)))
		}
	}
	for _, f := range far {
		if !within(name, f.within) || within(name, f.except) {
			continue
		}
		for _, dep := range p.Deps {
			if dep == f.forbids || strings.HasPrefix(dep, strings.TrimSuffix(f.forbids, "/")+"/") {
				complaints = append(complaints, fmt.Sprintf("%s depends on %s: %s", name, dep, f.because))
				break
			}
		}
	}
	return complaints
}

func (r room) allowsOurs(name string) bool {
	library := name != "cmd" && !strings.HasPrefix(name, "cmd/")
	return slices.Contains(r.ours, name) || library && slices.Contains(r.ours, "libraries")
}

func (r room) allowsOther(path string) bool {
	return slices.ContainsFunc(r.others, func(prefix string) bool {
		return prefix == "any" || path == prefix || strings.HasPrefix(path, prefix+"/")
	})
}

// standard tells whether path is the standard library's: no dot in its first element.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func within(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool {
		return prefix == "" || name == prefix || strings.HasPrefix(name, prefix+"/")
	})
}

func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// goList lists the module's packages as they are on a system.
func goList(t *testing.T, on ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Standard,Module,Imports,Deps,GoFiles", "./...")
	cmd.Env = append(os.Environ(), on...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list on %s: %v\n%s", on, err, stderr.Bytes())
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list on %s: %v", on, err)
		}
		all = append(all, p)
	}
	if len(all) < 2 {
		t.Fatalf("go list on %s found %d packages", on, len(all))
	}
	return all
}

var quoted = regexp.MustCompile("`([^`]+)`|\\b(libraries|any)\\b")

// readRooms reads the table of ARCHITECTURE.md.
func readRooms(t *testing.T) map[string]room {
	t.Helper()
	page, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "<!-- rooms:begin -->")
	table, _, ok2 := strings.Cut(table, "<!-- rooms:end -->")
	if !ok || !ok2 {
		t.Fatal("ARCHITECTURE.md: no table between rooms:begin and rooms:end")
	}
	names := func(cell string) (out []string) {
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			out = append(out, m[1]+m[2])
		}
		return out
	}
	rooms := map[string]room{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || len(names(cells[0])) != 1 {
			continue // blank, head or rule
		}
		rooms[names(cells[0])[0]] = room{strings.TrimSpace(cells[1]), names(cells[2]), names(cells[3])}
	}
	if len(rooms) == 0 {
		t.Fatal("ARCHITECTURE.md: the table of rooms is empty")
	}
	return rooms
}

// TestCheck shows that each rule can fail, and that it says what is wrong.
func TestCheck(t *testing.T) {
	rooms := map[string]room{
		"proxy":        {holds: "the handler"},
		"proxy/client": {holds: "the client", ours: []string{"lockfile"}},
		"lockfile":     {holds: "the lock", others: []string{"golang.org/x/sys"}},
		"cmd/x":        {holds: "main", ours: []string{"libraries"}, others: []string{"any"}},

		"signer/signertest": {holds: "the suite"},
	}
	for _, tc := range []struct {
		name, pkg string
		imports   []string
		deps      []string
		want      string // "": nothing to complain of
	}{
		{"standard library", "proxy", []string{"net/http", "crypto/tls"}, nil, ""},
		{"allowed sibling", "proxy/client", []string{module + "/lockfile"}, nil, ""},
		{"allowed module", "lockfile", []string{"golang.org/x/sys/unix"}, nil, ""},
		{"all libraries", "cmd/x", []string{module + "/proxy/client", "k8s.io/client-go/rest"}, nil, ""},
		{"no room", "utils", nil, nil, "utils: a package without a room"},
		{"sibling", "proxy", []string{module + "/signer"}, nil, `proxy imports signer: its room is for "the handler" and may import of ours only nothing`},
		{"cmd is no library", "cmd/x", []string{module + "/cmd/y"}, nil, "cmd/x imports cmd/y"},
		{"module", "proxy", []string{"golang.org/x/net/http2"}, nil, "proxy imports golang.org/x/net/http2"},
		{"prefix of a name is not its path", "lockfile", []string{"golang.org/x/sysinfo"}, nil, "lockfile imports golang.org/x/sysinfo"},
		{"far away", "proxy", nil, []string{"github.com/aws/aws-sdk-go-v2/aws"}, "proxy depends on github.com/aws/aws-sdk-go-v2/aws: only a signing scheme"},
		{"flags", "proxy", nil, []string{"flag"}, "proxy depends on flag: libraries read no flags"},
		{"test framework", "cmd/x", nil, []string{"testing"}, "must not link the test framework"},
		{"test framework in the suite for tests", "signer/signertest", []string{"testing"}, []string{"testing", "flag"}, ""},
		{"suite for tests", "cmd/x", []string{module + "/signer/signertest"}, []string{module + "/signer/signertest"}, "cmd/x depends on " + module + "/signer/signertest: the conformance suite is for tests alone"},
		{"kubernetes", "cmd/x", nil, []string{"k8s.io/kubernetes/cmd/kubectl"}, "k8s.io/kubernetes is not made to be imported"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := strings.Join(check(rooms, pkg{ImportPath: module + "/" + tc.pkg, GoFiles: []string{"x.go"}, Imports: tc.imports, Deps: tc.deps}), "\n")
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
