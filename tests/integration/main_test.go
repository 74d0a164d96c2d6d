//go:build linux

package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// suite is what all tests share: the built program and the cluster.
var suite struct {
	dir     string // of this run; short, because socket paths are below it
	alive   *os.File
	bin     string // the built execproxy
	kubectl string
	cluster *cluster.Cluster
	admin   *kubernetes.Clientset
}

// roleVariable makes the test binary play another process; see roles_test.go.
const roleVariable = "EXECPROXY_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	begin := time.Now()
	if err := prepare(); err != nil {
		fmt.Fprintf(os.Stderr, "integration: %v\n", err)
		code = 1
	} else {
		fmt.Fprintf(os.Stderr, "integration: execproxy built, cluster ready after %.1f s\n", time.Since(begin).Seconds())
		oneMore()
		code = m.Run()
		stopNode()
		if err := leftovers(); err != nil {
			fmt.Fprintf(os.Stderr, "integration: left behind: %v\n", err)
			code = 1
		}
	}
	stopPlane()
	if suite.cluster != nil {
		suite.cluster.Stop()
		if code != 0 {
			suite.cluster.Logs(os.Stderr, 15)
		}
	}
	if os.Getenv("EXECPROXY_TEST_KEEP") != "" {
		_ = os.Remove(filepath.Join(suite.dir, aliveFile))
		fmt.Fprintf(os.Stderr, "integration: kept %s\n", suite.dir)
	} else if err := os.RemoveAll(suite.dir); err != nil {
		fmt.Fprintf(os.Stderr, "integration: %v\n", err)
	}
	return code
}

// oneMore lets one test more run beside the others: TestIdleStreams waits for
// minutes, and only waits.
func oneMore() {
	flag.Parse()
	parallel := flag.Lookup("test.parallel").Value
	if n, err := strconv.Atoi(parallel.String()); err == nil {
		_ = parallel.Set(strconv.Itoa(n + 1))
	}
}

// prepare builds execproxy and starts the cluster, both at once.
func prepare() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	bin, err := kubebin.Find()
	if err != nil {
		return err
	}
	suite.kubectl = bin["kubectl"]
	sweepRuns(os.TempDir())
	if suite.dir, suite.alive, err = ownDirectory(""); err != nil {
		return err
	}
	// Some tests run the program as another user.
	if err := os.Chmod(suite.dir, 0o755); err != nil {
		return err
	}
	keys := filepath.Join(suite.dir, "cluster")
	if err := os.Mkdir(keys, 0o755); err != nil {
		return err
	}
	if suite.kubectl, err = public(suite.kubectl, suite.dir); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var buildErr, startErr error
	wg.Go(func() { suite.bin, buildErr = build(ctx, suite.dir, true) })
	wg.Go(func() { suite.cluster, startErr = cluster.Start(ctx, keys) })
	wg.Wait()
	if err := errors.Join(buildErr, startErr); err != nil {
		return err
	}
	return grant(ctx)
}

// static is the program under test as it is without cgo: it has no PKCS#11.
var static = sync.OnceValues(func() (string, error) {
	return build(context.Background(), filepath.Join(suite.dir, "static"), false)
})

// build makes the program under test, as `make build` does.
func build(ctx context.Context, dir string, cgo bool) (string, error) {
	root, err := kubebin.Root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "execproxy")
	args := []string{"build", "-trimpath", "-buildvcs=false", "-tags=netgo,osusergo", "-o", bin}
	env := os.Environ()
	if os.Getenv("EXECPROXY_TEST_FIPS") != "" {
		env = append(env, "GOFIPS140=certified")
	}
	if cgo {
		env = append(env, "CGO_ENABLED=1")
	} else {
		env = append(env, "CGO_ENABLED=0")
	}
	if cgo && os.Getenv("EXECPROXY_TEST_RACE") != "" {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/execproxy")...)
	cmd.Dir, cmd.Env = filepath.Join(root, "..", ".."), env
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := proc.StartCmd(cmd); err != nil {
		return "", fmt.Errorf("building execproxy: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("building execproxy: %w\n%s", err, out.String())
	}
	return bin, nil
}

// grant gives rights to group dev: everything with configmaps, and to act as
// bob, who may only read. Group enrollers may ask for certificates; those that
// nodes ask for anew are approved by the cluster.
func grant(ctx context.Context) (err error) {
	suite.admin, err = adminClientset(suite.cluster.API.URL)
	if err != nil {
		return err
	}
	read := []string{"get", "list", "watch"}
	all := append([]string{"create", "update", "patch", "delete", "deletecollection"}, read...)
	for name, rules := range map[string][]rbac.PolicyRule{
		"dev": {
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: all},
			{APIGroups: []string{""}, Resources: []string{"namespaces", "pods", "pods/log"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"pods/exec", "pods/attach", "pods/portforward"}, Verbs: []string{"get", "create"}},
			{APIGroups: []string{""}, Resources: []string{"users"}, Verbs: []string{"impersonate"}, ResourceNames: []string{"bob"}},
		},
		"reader": {{APIGroups: []string{""}, Resources: []string{"configmaps", "namespaces"}, Verbs: read}},
		"enroller": {{
			APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"},
			Verbs: append([]string{"create"}, read...),
		}},
	} {
		role := &rbac.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
		if _, err := suite.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating role %s: %w", name, err)
		}
	}
	for role, subject := range map[string]rbac.Subject{
		"dev":      {Kind: rbac.GroupKind, APIGroup: rbac.GroupName, Name: "dev"},
		"reader":   {Kind: rbac.UserKind, APIGroup: rbac.GroupName, Name: "bob"},
		"enroller": {Kind: rbac.GroupKind, APIGroup: rbac.GroupName, Name: "enrollers"},
		"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": {Kind: rbac.GroupKind, APIGroup: rbac.GroupName, Name: "system:nodes"},
	} {
		binding := &rbac.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbac.Subject{subject},
		}
		if _, err := suite.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("binding role %s: %w", role, err)
		}
	}
	return nil
}

// adminClientset talks to an API server itself, past execproxy.
func adminClientset(url string) (*kubernetes.Clientset, error) {
	client, err := suite.cluster.AdminClient()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfigAndClient(&rest.Config{Host: url, QPS: -1}, client)
}

// leftovers looks for anything of execproxy that outlived the tests.
func leftovers() error {
	var errs []error
	for pid, what := range processes(suite.dir) {
		errs = append(errs, fmt.Errorf("process %d: %s", pid, what))
	}
	err := filepath.WalkDir(suite.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&os.ModeSocket != 0 {
			errs = append(errs, fmt.Errorf("socket %s", path))
		}
		return err
	})
	return errors.Join(append(errs, err)...)
}
