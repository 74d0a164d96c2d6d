package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// head says when, where and what.
func (b *bench) head(ctx context.Context) {
	version := func(name string, args ...string) string {
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput() // nginx says it on stderr
		if err != nil {
			return "unknown: " + err.Error()
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return first
	}
	fmt.Fprintf(b.out, "%s, %s, %d processors, %s\n\n", time.Now().UTC().Format("2006-01-02 15:04 MST"), machine(), runtime.NumCPU(), runtime.Version())
	fmt.Fprintf(b.out, "- execproxy: %s\n- kubectl: %s\n", version(b.execproxy, "version"), version(b.kubectl, "version", "--client"))
	for _, peer := range []struct{ program, pkg, flag string }{{"nginx", "nginx-light", "-v"}, {"haproxy", "haproxy", "-v"}} {
		if path, err := installed(peer.program, peer.pkg); err == nil {
			fmt.Fprintf(b.out, "- %s: %s\n", peer.program, strings.TrimPrefix(version(path, peer.flag), "nginx version: "))
		}
	}
	fmt.Fprintf(b.out, "- rounds: %d of %v each, interleaved; every figure is the median of the rounds\n", b.rounds, b.span)
	if b.gather {
		fmt.Fprintln(b.out, "- the client sends what is due together in one write")
	}
}
