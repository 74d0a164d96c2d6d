package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// head says when, where and what.
func (b *bench) head(ctx context.Context) {
	version := func(name string, args ...string) string {
		out, err := exec.CommandContext(ctx, name, args...).Output()
		if err != nil {
			return "unknown: " + err.Error()
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return first
	}
	fmt.Fprintf(b.out, "%s, %s, %d processors, %s\n\n", time.Now().UTC().Format("2006-01-02 15:04 MST"), machine(), runtime.NumCPU(), runtime.Version())
	fmt.Fprintf(b.out, "- execproxy: %s\n- kubectl: %s\n", version(b.execproxy, "version"), version(b.kubectl, "version", "--client"))
	fmt.Fprintf(b.out, "- %d rounds of %v each, interleaved; every figure is the median of the rounds\n", b.rounds, b.span)
}

func (b *bench) printLoad(l load, targets []*target, samples [][]sample) {
	fmt.Fprintf(b.out, "\n### %s\n\n", l.name)
	fmt.Fprintln(b.out, "| | CPU of the proxy, µs/request | × kubectl proxy | p50, µs | × kubectl proxy | p99, µs | requests/s | × kubectl proxy | RSS, MiB |")
	fmt.Fprintln(b.out, "|---|---|---|---|---|---|---|---|---|")
	medians := make([]sample, len(targets))
	for i, all := range samples {
		medians[i] = sample{
			cpu:  median(all, func(s sample) float64 { return s.cpu }),
			p50:  median(all, func(s sample) float64 { return s.p50 }),
			p99:  median(all, func(s sample) float64 { return s.p99 }),
			rate: median(all, func(s sample) float64 { return s.rate }),
			rss:  median(all, func(s sample) float64 { return s.rss }),
		}
	}
	base := medians[len(medians)-1]
	for i, t := range targets {
		m := medians[i]
		if t.name == nameMTLS || t.name == nameSigV4 {
			switch l {
			case getOne:
				b.atMost(t.name+", "+l.name+": p50 × kubectl proxy", m.p50/base.p50, 0.6)
			case getMany:
				b.atMost(t.name+", "+l.name+": CPU × kubectl proxy", m.cpu/base.cpu, 0.25)
			case listMany:
				b.atLeast(t.name+", "+l.name+": requests/s × kubectl proxy", m.rate/base.rate, 1)
			}
		}
		cpu, cpuRatio, rss := "–", "–", "–"
		if t.pid != 0 {
			cpu, cpuRatio, rss = fmt.Sprintf("%.0f", m.cpu), fmt.Sprintf("%.2f", m.cpu/base.cpu), fmt.Sprintf("%.0f", m.rss)
		}
		fmt.Fprintf(b.out, "| %s | %s | %s | %.0f | %.2f | %.0f | %.0f | %.2f | %s |\n",
			t.name, cpu, cpuRatio, m.p50, m.p50/base.p50, m.p99, m.rate, m.rate/base.rate, rss)
	}
}

func (b *bench) printWatches(targets []*target, results []watched) {
	fmt.Fprintf(b.out, "\n### %d idle watches, one after the other on fresh proxies\n\n", b.watches)
	fmt.Fprintln(b.out, "| | RSS before, MiB | with all idle, MiB | KiB per watch | × kubectl proxy | after one event to all, MiB | event to all, ms |")
	fmt.Fprintln(b.out, "|---|---|---|---|---|---|---|")
	each := func(w watched) float64 { return (w.idle - w.before) * 1024 / float64(b.watches) }
	base := each(results[len(results)-1])
	for i, t := range targets {
		w := results[i]
		event := fmt.Sprintf("%.0f", micros(w.event)/1000)
		if t.pid == 0 {
			fmt.Fprintf(b.out, "| %s | – | – | – | – | – | %s |\n", t.name, event)
			continue
		}
		if t.name != nameKubectl {
			b.atMost(t.name+", idle watch: KiB each", each(w), 5)
			b.atMost(t.name+", one event to all: ms", micros(w.event)/1000, 200)
		}
		fmt.Fprintf(b.out, "| %s | %.0f | %.0f | %.1f | %.2f | %.0f | %s |\n", t.name, w.before, w.idle, each(w), each(w)/base, w.after, event)
	}
}

func median(all []sample, of func(sample) float64) float64 {
	values := make([]float64, len(all))
	for i, s := range all {
		values[i] = of(s)
	}
	slices.Sort(values)
	n := len(values)
	if n == 0 {
		return 0
	}
	return (values[(n-1)/2] + values[n/2]) / 2
}

// goal is what a figure should be, and what it was.
type goal struct {
	what string
	goal string
	got  float64
	met  bool
}

func (b *bench) atMost(what string, got, most float64) {
	b.goals = append(b.goals, goal{what, fmt.Sprintf("≤ %g", most), got, got <= most})
}

func (b *bench) atLeast(what string, got, least float64) {
	b.goals = append(b.goals, goal{what, fmt.Sprintf("≥ %g", least), got, got >= least})
}

func (b *bench) printGoals(context.Context) error {
	fmt.Fprintf(b.out, "\n### Goals\n\n| | goal | this run | |\n|---|---|---|---|\n")
	for _, g := range b.goals {
		verdict := "missed"
		if g.met {
			verdict = "met"
		}
		fmt.Fprintf(b.out, "| %s | %s | %.3g | %s |\n", g.what, g.goal, g.got, verdict)
	}
	return nil
}
