package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Where there is no pidfd, the end is seen as well, a zombie's too.
func TestPollEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := pollEnd(ctx, os.Getpid()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a process that runs: %v", err)
	}
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Skipf("no program to run: %v", err)
	}
	if err := pollEnd(t.Context(), cmd.Process.Pid); err != nil { // nobody has reaped it yet
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := pollEnd(t.Context(), cmd.Process.Pid); err != nil {
		t.Error(err)
	}
}
