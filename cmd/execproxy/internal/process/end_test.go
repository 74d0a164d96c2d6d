package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// sleeper is a process that runs until it is killed.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs sleep(1)")
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// A process that has ended counts as gone before anybody has reaped it.
func TestWatchEnd(t *testing.T) {
	cmd := sleeper(t)
	wait, err := WatchEnd(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := wait(ctx); err != nil {
		t.Error(err)
	}
}

func TestWatchEndGivesUp(t *testing.T) {
	wait, err := WatchEnd(sleeper(t).Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the time is over", err)
	}
}

func TestWatchNobody(t *testing.T) {
	cmd := sleeper(t)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := WatchEnd(cmd.Process.Pid); err == nil {
		t.Error("took hold of a process that is gone")
	}
	if _, err := WatchEnd(os.Getpid()); err != nil {
		t.Error(err)
	}
}
