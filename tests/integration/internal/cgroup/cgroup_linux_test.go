package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestSweep: only what a process has left that is gone.
func TestSweep(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	gone := strconv.Itoa(cmd.Process.Pid)
	mine := strings.Split(Name("h1"), "-")
	kept := []string{Name("h1"), "execproxy-test-" + gone, "other-" + gone + "-1-h1"}
	swept := []string{"execproxy-test-" + gone + "-1-h1", "execproxy-test-" + mine[2] + "-1" + mine[3] + "-h1"} // its id was used anew
	top := t.TempDir()
	for _, name := range append(kept, swept...) {
		if err := os.MkdirAll(filepath.Join(top, name, "below"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	Sweep(top)
	for _, name := range kept {
		if _, err := os.Stat(filepath.Join(top, name, "below")); err != nil {
			t.Error(err)
		}
	}
	for _, name := range swept {
		if _, err := os.Stat(filepath.Join(top, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
	Remove(filepath.Join(top, kept[0]))
	if _, err := os.Stat(filepath.Join(top, kept[0])); err == nil {
		t.Error("it is not removed")
	}
}
