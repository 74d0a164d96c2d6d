// Command bench measures what execproxy costs, beside no proxy at all, nginx,
// haproxy, kubectl proxy and what Go's standard library and the AWS SDK make, in
// one run on one machine.
//
//	go run ./bench -execproxy ../../bin/execproxy
//
// The API server is a stand-in in a process of its own. The figure to trust on a
// noisy machine is the proxy process' CPU time per request; compare figures only
// within a run. Rounds are interleaved and every figure is the median of its
// rounds. It prints Markdown, and on stderr what it is at.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
)

// options are the flags.
type options struct {
	execproxy string
	kubectl   string
	awsProxy  string

	only    *regexp.Regexp // scenarios
	wanted  *regexp.Regexp // targets
	partial bool           // some of these only

	gather  bool
	rounds  int
	span    time.Duration // one target, one round
	watches int
	settle  time.Duration // before memory is read
	warm    int           // executions
	cold    int
	gets    int // executions of kubectl get
	profile string
	dir     string // for all files; "": a temporary one
}

// Shorter runs: of a minute, and one that only shows that everything works.
func (o *options) quick() {
	o.rounds, o.span, o.settle, o.warm, o.cold, o.gets = 1, 250*time.Millisecond, time.Second, 10, 4, 3
}

func (o *options) smoke() {
	o.rounds, o.span, o.watches, o.settle, o.warm, o.cold, o.gets = 1, 20*time.Millisecond, 250, 50*time.Millisecond, 2, 1, 1
}

func main() {
	if err := command(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func command() error {
	if played, err := play(); played {
		return err
	}
	var o options
	flag.StringVar(&o.execproxy, "execproxy", "../../bin/execproxy", "the `binary` to measure")
	flag.StringVar(&o.kubectl, "kubectl", "", "the `kubectl` to compare with; without it the integration tests' own")
	flag.StringVar(&o.awsProxy, "aws-sigv4-proxy", "aws-sigv4-proxy", "the aws-sigv4-proxy `binary` to compare with")
	only := flag.String("only", "", "only scenarios whose name matches this `regexp`")
	targets := flag.String("targets", "", "only targets whose name matches this `regexp`")
	quick := flag.Bool("quick", false, "one short round of each, about a minute; takes the place of the flags below")
	smoke := flag.Bool("smoke", false, "each for a blink, to see that it works; takes the place of the flags below")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds of each load; every figure is their median")
	flag.DurationVar(&o.span, "time", 700*time.Millisecond, "`time` of one target in one round")
	flag.IntVar(&o.watches, "watches", 10_000, "idle watches, 100 on a connection")
	flag.DurationVar(&o.settle, "settle", 2*time.Second, "`time` that a proxy gets to come to rest before its memory is read")
	flag.IntVar(&o.warm, "warm", 40, "plugin executions with a running daemon")
	flag.IntVar(&o.cold, "cold", 15, "plugin executions that start one")
	flag.IntVar(&o.gets, "gets", 15, "executions of kubectl get over a slow link")
	flag.BoolVar(&o.gather, "gather", false, "requests that are due together go out in one write, as from a client that is not Go's")
	flag.StringVar(&o.profile, "profile", "", "record the proxies of every load with perf, into `directory`; needs linux-perf, and a binary with symbols")
	verbose := flag.Bool("v", false, "say more about what is being done")
	flag.Parse()
	if *quick {
		o.quick()
	}
	if *smoke {
		o.smoke()
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if o.wanted, err = regexp.Compile(*targets); err != nil {
		return fmt.Errorf("-targets: %w", err)
	}
	o.partial = *only != "" || *targets != ""
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, o, log, os.Stdout)
}

// play is another process of the bench, where a variable says so.
func play() (played bool, err error) {
	if dir := os.Getenv(upstreamVariable); dir != "" {
		return true, serveUpstream(dir)
	}
	if where := os.Getenv(referenceVariable); where != "" {
		return true, serveReference(where)
	}
	return false, nil
}

func run(ctx context.Context, o options, log *slog.Logger, out io.Writer) (err error) {
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
	if o.dir == "" {
		// Short, because the path of a Unix socket is.
		if o.dir, err = os.MkdirTemp("/tmp", "epb"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	}
	if err := install(o.execproxy, filepath.Join(o.dir, "execproxy")); err != nil {
		return err
	}
	o.execproxy = filepath.Join(o.dir, "execproxy")
	up, err := startUpstream(ctx, o.dir)
	if err != nil {
		return err
	}
	defer up.stop()

	b := &bench{options: o, up: up, log: log, out: out, results: newResults()}
	begin := time.Now()
	b.head(ctx)
	for _, part := range []func(context.Context) error{b.loads, b.signature, b.idleWatches, b.plugin, b.link} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	b.printGoals()
	fmt.Fprintf(b.out, "\nThe run took %.0f s.\n", time.Since(begin).Seconds())
	return nil
}

// install copies a program, so that it comes from the disk, as after a boot: of
// one that was just linked the cache has pieces of 2 MiB, and a process that
// touches a byte of such a piece has it resident whole.
func install(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return forget(out)
}

// runs tells whether a scenario is to be run.
func (b *bench) runs(name string) bool { return b.only.MatchString(name) }
