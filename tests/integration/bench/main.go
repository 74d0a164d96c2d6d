// Command bench measures what execproxy costs, beside no proxy at all and
// beside `kubectl proxy`, in one run on one machine.
//
//	go run ./bench -execproxy ../../bin/execproxy
//
// The API server is a stand-in in a process of its own. The figure to trust on a
// noisy machine is the proxy process' CPU time per request; compare figures only
// within a run. Rounds are interleaved and every figure is the median of its
// rounds. It prints Markdown.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
)

// options are the flags.
type options struct {
	execproxy string
	kubectl   string
	rounds    int
	span      time.Duration // one target, one round
	watches   int
	warm      int // executions
	cold      int
}

func main() {
	if dir := os.Getenv(upstreamVariable); dir != "" {
		if err := serveUpstream(dir); err != nil {
			fmt.Fprintf(os.Stderr, "bench: upstream: %v\n", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.execproxy, "execproxy", "../../bin/execproxy", "the `binary` to measure")
	flag.StringVar(&o.kubectl, "kubectl", "", "the kubectl to compare with; without it the integration tests' own")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each load; every figure is their median")
	flag.DurationVar(&o.span, "time", time.Second, "`time` of one target in one round")
	flag.IntVar(&o.watches, "watches", 2000, "idle watches")
	flag.IntVar(&o.warm, "warm", 40, "plugin executions with a running daemon")
	flag.IntVar(&o.cold, "cold", 15, "plugin executions that start one")
	verbose := flag.Bool("v", false, "say what is being done")
	flag.Parse()
	log := slog.New(slog.DiscardHandler)
	if *verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, log); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, log *slog.Logger) (err error) {
	if o.execproxy, err = filepath.Abs(o.execproxy); err != nil {
		return err
	}
	if _, err := os.Stat(o.execproxy); err != nil {
		return fmt.Errorf("%w: build it with `make build`", err)
	}
	if o.kubectl == "" {
		programs, err := kubebin.Find()
		if err != nil {
			return err
		}
		o.kubectl = programs["kubectl"]
	}
	// Short, because the path of a Unix socket is.
	dir, err := os.MkdirTemp("/tmp", "epb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	up, err := startUpstream(ctx, dir)
	if err != nil {
		return err
	}
	defer up.stop()
	b := &bench{options: o, dir: dir, up: up, log: log, out: os.Stdout}

	begin := time.Now()
	b.head(ctx)
	for _, part := range []func(context.Context) error{b.loads, b.idleWatches, b.plugin, b.printGoals} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.out, "\nThe run took %.0f s.\n", time.Since(begin).Seconds())
	return nil
}

// targets starts all that is compared, afresh. The last one is what the others
// are compared with.
func (b *bench) targets(ctx context.Context) (all []*target, stop func(), err error) {
	stop = func() {
		for _, t := range all {
			t.stop()
		}
	}
	for _, start := range []func(context.Context) (*target, error){b.direct, b.mtls, b.sigv4, b.kubectlProxy} {
		t, err := start(ctx)
		if err != nil {
			stop()
			return nil, nil, err
		}
		all = append(all, t)
		b.log.Info("started", "target", t.name, "pid", t.pid)
	}
	return all, stop, nil
}
