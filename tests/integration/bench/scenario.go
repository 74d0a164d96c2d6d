package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// loads measures every load on every target that it is for, on proxies that are
// started once.
func (b *bench) loads(ctx context.Context) error {
	var wanted []*load
	for _, l := range slices.Concat(loads, spread) {
		if b.runs(l.name) {
			wanted = append(wanted, l)
		}
	}
	idle := b.runs(idleName)
	if len(wanted) == 0 && !idle {
		return nil
	}
	targets, stop, err := b.targets(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if idle {
		if err := b.idle(ctx, targets); err != nil {
			return err
		}
	}
	for _, l := range wanted {
		var on []*target
		for _, t := range targets {
			if t.name == nameLarge && l.mib == 0 {
				continue // for large payloads alone
			}
			if len(l.targets) == 0 || slices.Contains(l.targets, t.name) {
				on = append(on, t)
			}
		}
		samples := make([][]sample, len(on))
		for round := range b.rounds {
			for i := range on {
				i = (i + round) % len(on) // nobody always comes after the same
				b.log.Info("load", "name", l.name, "round", round+1, "target", on[i].name)
				s, err := b.profiled(ctx, on[i], l)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", on[i].name, l.name, err)
				}
				b.log.Debug("measured", "cpu", s.cpu, "p50", s.p50, "rate", s.rate)
				samples[i] = append(samples[i], s)
			}
		}
		medians := make([]sample, len(on))
		for i, t := range on {
			medians[i] = middle(samples[i])
			b.results.loads[key{l.name, t.name}] = medians[i]
		}
		if !slices.Contains(spread, l) {
			b.printLoad(l, on, medians)
		}
	}
	b.printSpread(targets)
	b.printAll(targets)
	return nil
}

const idleName = "idle memory"

// idle is the memory of proxies that have served nothing yet.
func (b *bench) idle(ctx context.Context, targets []*target) error {
	if err := sleep(ctx, b.settle); err != nil {
		return err
	}
	fmt.Fprint(b.out, "\n### Memory of a proxy that has served nothing yet\n\n| | RSS, MiB | of it anonymous, MiB | PSS, MiB | descriptors |\n|---|---|---|---|---|\n")
	for _, t := range targets {
		if len(t.pids) == 0 || t.name == nameLarge {
			continue
		}
		t.look()
		m, err := memory(t.pids)
		if err != nil {
			return err
		}
		n, err := descriptors(t.pids)
		if err != nil {
			return err
		}
		b.results.idle[t.name] = m
		fmt.Fprintf(b.out, "| %s | %.1f | %.1f | %.1f | %d |\n", t.name, m.rss, m.anon, m.pss, n)
	}
	return nil
}

func (b *bench) printLoad(l *load, targets []*target, medians []sample) {
	base := slices.IndexFunc(targets, func(t *target) bool { return t.name == nameNginx })
	what := "µs/request"
	per := 1.0
	switch {
	case l.mib > 0:
		what, per = "µs/MiB", l.mib
	case l.fresh:
		what = "µs/connection"
	}
	fmt.Fprintf(b.out, "\n### %s\n\n", strings.ToUpper(l.name[:1])+l.name[1:])
	fmt.Fprintf(b.out, "| | CPU of the proxy, %s | × nginx | p50, µs | × nginx | p99, µs | requests/s | RSS, MiB |\n|---|---|---|---|---|---|---|---|\n", what)
	for i, t := range targets {
		m := medians[i]
		cpu, cpuRatio, p50Ratio, rss := "–", "–", "–", "–"
		if base >= 0 {
			p50Ratio = fmt.Sprintf("%.2f", m.p50/medians[base].p50)
		}
		if len(t.pids) > 0 {
			cpu, rss = fmt.Sprintf("%.1f", m.cpu/per), fmt.Sprintf("%.0f", m.rss)
			if base >= 0 {
				cpuRatio = fmt.Sprintf("%.2f", m.cpu/medians[base].cpu)
			}
		}
		fmt.Fprintf(b.out, "| %s | %s | %s | %.0f | %s | %.0f | %.0f | %s |\n", t.name, cpu, cpuRatio, m.p50, p50Ratio, m.p99, m.rate, rss)
	}
}

// printSpread tells what a request costs as connections grow in number.
func (b *bench) printSpread(targets []*target) {
	var rows strings.Builder
	for _, t := range targets {
		row := ""
		for _, l := range spread {
			if s, ok := b.results.loads[key{l.name, t.name}]; ok {
				row += fmt.Sprintf(" %.1f | %.0f |", s.cpu, s.rss)
			}
		}
		if row != "" {
			fmt.Fprintf(&rows, "| %s |%s\n", t.name, row)
		}
	}
	if rows.Len() == 0 {
		return
	}
	head, rule := "|", "|---|"
	for _, l := range spread {
		if b.runs(l.name) {
			head += fmt.Sprintf(" over %d: CPU, µs/request | RSS, MiB |", l.conns)
			rule += "---|---|"
		}
	}
	fmt.Fprintf(b.out, "\n### Cost of more: GET of 2 KiB, 16 in flight over ever more connections\n\n| %s\n%s\n%s", head, rule, rows.String())
}

// printAll is one table of what matters most, with ratios to nginx.
func (b *bench) printAll(targets []*target) {
	columns := []struct {
		head   string
		l      *load
		figure func(sample) float64
	}{
		{"CPU µs/request, 16 in flight", getMany, cpuOf}, {"1 in flight", getOne, cpuOf}, {"p50 at 1, µs", getOne, p50Of},
		{"LIST of 1 MiB, CPU µs", listMany, cpuOf}, {"POST of 1 MiB", post, cpuOf}, {"a new connection and one GET", arrivals, cpuOf},
		{"RSS MiB, at 16", getMany, rssOf},
	}
	for _, c := range columns {
		if !b.runs(c.l.name) {
			return
		}
	}
	fmt.Fprint(b.out, "\n### All in one, × nginx in brackets\n\n|")
	for _, c := range columns {
		fmt.Fprintf(b.out, " | %s", c.head)
	}
	fmt.Fprintf(b.out, " |\n|---%s|\n", strings.Repeat("|---", len(columns)))
	for _, t := range targets {
		if len(t.pids) == 0 {
			continue
		}
		fmt.Fprintf(b.out, "| %s", t.name)
		for _, c := range columns {
			s, ok := b.results.loads[key{c.l.name, t.name}]
			base, ok2 := b.results.loads[key{c.l.name, nameNginx}]
			switch {
			case !ok:
				fmt.Fprint(b.out, " | –")
			case ok2 && t.name != nameNginx:
				fmt.Fprintf(b.out, " | %.0f (%.2f)", c.figure(s), c.figure(s)/c.figure(base))
			default:
				fmt.Fprintf(b.out, " | %.0f", c.figure(s))
			}
		}
		fmt.Fprintln(b.out, " |")
	}
}

// middle is the median of each figure.
func middle(all []sample) sample {
	of := func(figure func(sample) float64) float64 {
		values := make([]float64, len(all))
		for i, s := range all {
			values[i] = figure(s)
		}
		return median(values)
	}
	return sample{
		cpu:  of(func(s sample) float64 { return s.cpu }),
		p50:  of(func(s sample) float64 { return s.p50 }),
		p99:  of(func(s sample) float64 { return s.p99 }),
		rate: of(func(s sample) float64 { return s.rate }),
		rss:  of(func(s sample) float64 { return s.rss }),
	}
}

func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return (values[(n-1)/2] + values[n/2]) / 2
}
