package execproxy_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// libraries are the directories whose packages other programs import.
var libraries = []string{"proxy", "signer", "lockfile", "transport"}

// forbidden are names that a library may not use, and why. A name that ends in
// a star stands for all that begin so.
var forbidden = map[string]string{
	"os.Exit":                   "a library returns an error; only main ends the process",
	"os.Stdout":                 "stdout belongs to the ExecCredential",
	"os.Stderr":                 "a library logs to the *slog.Logger it was given",
	"os.Stdin":                  "stdin and the terminal belong to the client's user",
	"os.Args":                   "libraries read no flags",
	"os.Getenv":                 "libraries read no environment",
	"os.LookupEnv":              "libraries read no environment",
	"os.ExpandEnv":              "libraries read no environment",
	"os.Environ":                "libraries read no environment",
	"os.Setenv":                 "a library does not change the process that uses it",
	"fmt.Print*":                "stdout belongs to the ExecCredential",
	"log.Print*":                "a library logs to the *slog.Logger it was given",
	"log.Fatal*":                "a library returns an error; only main ends the process",
	"log.Panic*":                "a library returns an error",
	"log.Default":               "a library logs to the *slog.Logger it was given",
	"slog.Default":              "a library logs to the *slog.Logger it was given",
	"slog.SetDefault":           "a library does not change the process that uses it",
	"slog.Debug*":               "a library logs to the *slog.Logger it was given",
	"slog.Info*":                "a library logs to the *slog.Logger it was given",
	"slog.Warn*":                "a library logs to the *slog.Logger it was given",
	"slog.Error*":               "a library logs to the *slog.Logger it was given",
	"http.ProxyFromEnvironment": "libraries read no environment; the way to the server is injected",
	"httpproxy.FromEnvironment": "libraries read no environment; the way to the server is injected",
	"http.DefaultTransport":     "it reads HTTPS_PROXY from the environment and is shared with strangers",
	"http.DefaultClient":        "it reads HTTPS_PROXY from the environment and is shared with strangers",
}

func TestLibrariesKeepToThemselves(t *testing.T) {
	for _, file := range goFiles(t, libraries...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, complaint := range readLibrary(t, file, src) {
			t.Error(complaint)
		}
	}
}

// readLibrary returns what the library source file src does that it may not.
func readLibrary(t *testing.T, name string, src []byte) (complaints []string) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	// Local names of packages, so that an alias hides nothing.
	packages := map[string]string{}
	for _, spec := range file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		local := path.Base(p)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		packages[local] = path.Base(p)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				complaints = append(complaints, fmt.Sprintf("%s: init(): importing a library must do nothing", fset.Position(n.Pos())))
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && packages[x.Name] != "" {
				used := packages[x.Name] + "." + n.Sel.Name
				if because := forbids(used); because != "" {
					complaints = append(complaints, fmt.Sprintf("%s: %s: %s", fset.Position(n.Pos()), used, because))
				}
			}
		}
		return true
	})
	return complaints
}

func forbids(name string) (because string) {
	for pattern, because := range forbidden {
		prefix, open := strings.CutSuffix(pattern, "*")
		if name == pattern || open && strings.HasPrefix(name, prefix) {
			return because
		}
	}
	return ""
}

// TestForbidden shows that the reading of libraries can fail.
func TestForbidden(t *testing.T) {
	for src, want := range map[string]string{
		`import "os"; func f() { os.Exit(1) }`:                                        "os.Exit: a library returns an error",
		`import sys "os"; var x = sys.Getenv("HOME")`:                                 "os.Getenv: libraries read no environment",
		`import "fmt"; func f() { fmt.Println() }`:                                    "fmt.Println: stdout belongs to the ExecCredential",
		`import "net/http"; var t = http.Transport{Proxy: http.ProxyFromEnvironment}`: "http.ProxyFromEnvironment: libraries read no environment",
		`func init() {}`: "init(): importing a library must do nothing",
		`import "fmt"; func f() string { return fmt.Sprint() }`:                    "",
		`type os struct{ Stdout int }; func (o os) init() int { return o.Stdout }`: "",
	} {
		got := strings.Join(readLibrary(t, "x.go", []byte("package x; "+src)), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s\ngot  %q\nwant %q", src, got, want)
		}
	}
}

// Files are named for what they hold; these names hold anything.
var nameless = regexp.MustCompile(`^(utils?|misc|common|stuff)(_[a-z0-9]+)*\.go$`)

func TestFileNames(t *testing.T) {
	for _, file := range goFiles(t, ".") {
		if nameless.MatchString(filepath.Base(file)) {
			t.Errorf("%s: name it for what it holds", file)
		}
		if dir := filepath.Base(filepath.Dir(file)); nameless.MatchString(dir + ".go") {
			t.Errorf("%s: a package is named for what it holds", file)
		}
	}
}

// TestIntegrationStandsOutside: the integration tests use the product as a
// stranger does, by its binary and its libraries.
func TestIntegrationStandsOutside(t *testing.T) {
	files := goFiles(t, "tests/integration")
	if len(files) == 0 {
		t.Fatal("tests/integration: no Go files")
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			below, ours := strings.CutPrefix(p, module+"/")
			if ours && !strings.HasPrefix(below, "tests/integration/") &&
				(strings.HasPrefix(below, "cmd/") || slices.Contains(strings.Split(below, "/"), "internal")) {
				t.Errorf("%s imports %s: it may use the product's libraries and its binary only", name, below)
			}
		}
	}
}

// TestModule: what a program that imports our libraries gets with them.
func TestModule(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mod)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "k8s.io/kubernetes", "k8s.io/apiserver", "go.etcd.io/etcd/server/v3":
			t.Errorf("go.mod requires %s: what only tests need belongs into tests/integration", fields[0])
		case "replace", "exclude":
			t.Errorf("go.mod has %q: `go install …@version` refuses such a module", strings.TrimSpace(line))
		}
	}
}

// goFiles returns the module's Go files below the directories.
func goFiles(t *testing.T, dirs ...string) (files []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
				return filepath.SkipDir
			case !d.IsDir() && strings.HasSuffix(p, ".go"):
				files = append(files, p)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}
