//go:build linux

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// account is a real user of this machine, made for one test.
type account struct {
	name     string
	uid, gid int
}

var accounts atomic.Int64

// newAccount makes a system user that is gone after the test. Its primary group
// is its own, unless another account's is given.
func newAccount(t *testing.T, name string, shared ...account) account {
	t.Helper()
	needRoot(t)
	sweepAccounts()
	a := account{name: fmt.Sprintf("ept%d-%s%d", os.Getpid(), name, accounts.Add(1))}
	args := []string{"useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/sh"}
	if len(shared) > 0 {
		args = append(args, "--no-user-group", "--gid", strconv.Itoa(shared[0].gid))
	} else {
		args = append(args, "--user-group")
	}
	must(t, administer(append(args, a.name)...))
	t.Cleanup(func() { must(t, removeAccount(a.name)) })
	u, err := user.Lookup(a.name)
	must(t, err)
	a.uid, err = strconv.Atoi(u.Uid)
	must(t, err)
	a.gid, err = strconv.Atoi(u.Gid)
	must(t, err)
	return a
}

// home is a home that belongs to the account.
func (a account) home(t *testing.T) *home {
	t.Helper()
	h := newHomeFor(t, a.uid)
	h.gid = a.gid
	h.own(h.dir, h.path("home"), h.path("r"), h.path("state"), h.path("tmp"))
	must(t, os.Chmod(filepath.Join(suite.cluster.Dir, "ca.crt"), 0o644)) // no secret, and another's
	h.env["USER"], h.env["LOGNAME"] = a.name, a.name
	return h
}

// administer runs a program that edits the user database. Only one may at a time,
// and the others do not wait.
func administer(args ...string) error {
	var out []byte
	var err error
	for range 100 {
		out, err = exec.Command("flock", append([]string{filepath.Join(suite.dir, "accounts.lock")}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "try again") {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%q: %w: %s", args, err, out)
	}
	return nil
}

func removeAccount(name string) error {
	// A user that a process still has is not removed without --force.
	return administer("userdel", "--force", name)
}

var ours = regexp.MustCompile(`(?m)^ept([0-9]+)-[a-z]+[0-9]+:`)

// sweepAccounts removes what a run that was killed left in the user database.
var sweepAccounts = sync.OnceFunc(func() {
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return
	}
	for _, m := range ours.FindAllStringSubmatch(string(passwd), -1) {
		pid, _ := strconv.Atoi(m[1])
		if syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = removeAccount(strings.TrimSuffix(m[0], ":"))
		}
	}
})
