package execproxy_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var updateLinked = flag.Bool("update", false, "write testdata/linked.txt anew")

const linkedFile = "testdata/linked.txt"

// TestLinked: every run of a client starts this binary, so that what it links
// is read, mapped and initialised each time. Others' packages in it are a
// decision, not an accident.
func TestLinked(t *testing.T) {
	readAll(t)
	// As released, and on the system that has most of them.
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "netgo,osusergo", "./cmd/execproxy")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var now []string
	for _, p := range strings.Fields(string(out)) {
		if !standard(p) && !strings.HasPrefix(p, module+"/") && !strings.HasPrefix(p, "vendor/") {
			now = append(now, p)
		}
	}
	slices.Sort(now)
	if len(now) == 0 {
		t.Fatal("go list found no packages of others")
	}
	if *updateLinked {
		if err := os.MkdirAll(filepath.Dir(linkedFile), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(linkedFile, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(linkedFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	before := strings.Fields(string(data))
	for _, p := range now {
		if !slices.Contains(before, p) {
			t.Errorf("%s is linked now: every start of the plugin pays for it", p)
		}
	}
	for _, p := range before {
		if !slices.Contains(now, p) {
			t.Errorf("%s is not linked any more", p)
		}
	}
	if t.Failed() {
		t.Logf("if that is meant: go test -run TestLinked -update .")
	}
}

// readAll looks at every source file: a passing test is cached by the files it
// looked at, and go list and go build look from another process.
func readAll(t *testing.T) {
	t.Helper()
	for _, file := range append(goFiles(t, "."), "go.mod", "go.sum") {
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
	}
}

// cost is what initialising takes, in what does not depend on the machine.
type cost struct{ bytes, allocs int }

func (c cost) over(most cost) bool { return c.bytes > most.bytes || c.allocs > most.allocs }

// Ceilings of the packages' variables and init functions, some way above what
// they take today. What is not listed has the first one.
var (
	anyInit   = cost{24 << 10, 300}
	allInits  = cost{2 << 20, 15_000}
	initCosts = map[string]cost{
		// Generated tables of the SDK, which has no other way. The chain of credentials links
		// all but ECR's, which hold two calls that signing by hand would make into forty lines each.
		"github.com/aws/aws-sdk-go-v2/service/ecr/schemas":                  {500 << 10, 2800},
		"github.com/aws/aws-sdk-go-v2/service/ecr/internal/endpoints":       {120 << 10, 850},
		"github.com/aws/aws-sdk-go-v2/service/ecrpublic/schemas":            {170 << 10, 950},
		"github.com/aws/aws-sdk-go-v2/service/ecrpublic/internal/endpoints": {80 << 10, 850},
		"github.com/aws/aws-sdk-go-v2/service/signin/schemas":               {100 << 10, 700},
		"github.com/aws/aws-sdk-go-v2/service/signin/internal/endpoints":    {80 << 10, 850},
		"github.com/aws/aws-sdk-go-v2/service/sso/schemas":                  {32 << 10, 220},
		"github.com/aws/aws-sdk-go-v2/service/sso/internal/endpoints":       {100 << 10, 850},
		"github.com/aws/aws-sdk-go-v2/service/ssooidc/schemas":              {72 << 10, 450},
		"github.com/aws/aws-sdk-go-v2/service/ssooidc/internal/endpoints":   {100 << 10, 850},
		"github.com/aws/aws-sdk-go-v2/service/sts/internal/endpoints":       {100 << 10, 850},
		// Kubeconfigs are read by the package that kubectl reads them with.
		"k8s.io/apimachinery/pkg/util/validation":      {60 << 10, 600},
		"k8s.io/apimachinery/pkg/api/validate/content": {48 << 10, 450},
		"k8s.io/apimachinery/pkg/api/meta":             {72 << 10, 100},
		"k8s.io/apimachinery/pkg/apis/meta/v1":         {32 << 10, 350},
		"k8s.io/apimachinery/pkg/util/version":         {32 << 10, 420},
		"k8s.io/client-go/plugin/pkg/client/auth/exec": {44 << 10, 400},
		"k8s.io/client-go/features":                    {60 << 10, 250},
		"go.yaml.in/yaml/v2":                           {36 << 10, 350},
	}
)

var inits = regexp.MustCompile(`(?m)^init (\S+) @\S+ ms, \S+ ms clock, (\d+) bytes, (\d+) allocs$`)

// TestInit: a package that builds maps or compiles patterns when it is
// initialised does so for every start of the plugin, whatever that is for.
func TestInit(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the ceilings are those of Linux")
	}
	readAll(t)
	_, trace, err := execproxy(t, []string{"GODEBUG=inittrace=1"}, "version")
	if err != nil {
		t.Fatalf("execproxy version: %v\n%s", err, trace)
	}
	found := inits.FindAllStringSubmatch(trace, -1)
	if len(found) < 50 {
		t.Fatalf("%d packages in the trace: has its form changed?\n%s", len(found), trace)
	}
	var all cost
	for _, m := range found {
		size, _ := strconv.Atoi(m[2])
		allocs, _ := strconv.Atoi(m[3])
		got := cost{size, allocs}
		all.bytes += size
		all.allocs += allocs
		name := strings.ReplaceAll(m[1], "%2e", ".")
		if complaint := checkInit(name, got); complaint != "" {
			t.Error(complaint)
		}
	}
	if all.over(allInits) {
		t.Errorf("all packages together allocate %d bytes in %d pieces when they are initialised, and may %d in %d", all.bytes, all.allocs, allInits.bytes, allInits.allocs)
	}
	t.Logf("%d packages initialise: %d bytes, %d allocations", len(found), all.bytes, all.allocs)
}

func checkInit(name string, got cost) string {
	most, listed := initCosts[name]
	if !listed {
		if standard(name) {
			return "" // Go's own differ by its version; they count in the sum
		}
		most = anyInit
	}
	if !got.over(most) {
		return ""
	}
	return fmt.Sprintf("%s allocates %d bytes in %d pieces when it is initialised, and may %d in %d: build it when it is first needed (sync.OnceValue), or say in initCosts why not",
		name, got.bytes, got.allocs, most.bytes, most.allocs)
}

// TestCheckInit shows that the ceilings can be hit.
func TestCheckInit(t *testing.T) {
	for _, tc := range []struct {
		name string
		got  cost
		want bool
	}{
		{module + "/proxy", anyInit, false},
		{module + "/proxy", cost{anyInit.bytes + 1, 1}, true},
		{module + "/proxy", cost{1, anyInit.allocs + 1}, true},
		{"go.yaml.in/yaml/v2", cost{anyInit.bytes + 1, 1}, false},
		{"net/http", cost{1 << 30, 1}, false},
	} {
		if got := checkInit(tc.name, tc.got) != ""; got != tc.want {
			t.Errorf("%s with %v: complained %v, want %v", tc.name, tc.got, got, tc.want)
		}
	}
}
