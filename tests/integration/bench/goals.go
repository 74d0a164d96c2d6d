package main

import (
	"fmt"
	"strings"
)

// key names a load on a target.
type key struct{ load, target string }

// results are the medians of a run; what was not measured is not there.
type results struct {
	loads     map[key]sample
	idle      map[string]mem
	watches   map[string]watched
	plugin    map[string]float64 // ms
	signature *signed
	link      *saved
}

func newResults() results {
	return results{loads: map[key]sample{}, idle: map[string]mem{}, watches: map[string]watched{}, plugin: map[string]float64{}}
}

// goal is what a figure should be, and how to get it from the results. It has
// none where something that it needs was not measured.
type goal struct {
	what  string
	most  bool // got may be at most bound; else at least
	bound float64
	got   func() (float64, bool)
}

func cpuOf(s sample) float64  { return s.cpu }
func p50Of(s sample) float64  { return s.p50 }
func rateOf(s sample) float64 { return s.rate }
func rssOf(s sample) float64  { return s.rss }

// goals are the project's, one line each for what is compared.
func (b *bench) goals() (all []goal) {
	r := &b.results
	atMost := func(what string, bound float64, got func() (float64, bool)) {
		all = append(all, goal{what, true, bound, got})
	}
	// ratio of a figure of one target and another's, under the same load.
	ratio := func(l *load, target, other string, figure func(sample) float64) func() (float64, bool) {
		return func() (float64, bool) {
			a, ok := r.loads[key{l.name, target}]
			o, ok2 := r.loads[key{l.name, other}]
			if !ok || !ok2 || figure(o) == 0 {
				return 0, false
			}
			return figure(a) / figure(o), true
		}
	}
	cpu := func(l *load, target, other string, bound float64) {
		atMost(fmt.Sprintf("%s: %s, CPU × %s", l.name, target, other), bound, ratio(l, target, other, cpuOf))
	}
	cpu(getMany, nameMTLS, nameNginx, 0.75)
	cpu(getMany, nameMTLS, nameKubectl, 0.25)
	cpu(getMany, nameSigV4, nameNginx, 0.75)
	cpu(getMore, nameSigV4, nameNginx, 0.6)
	cpu(getMany, nameSigV4, nameSigV4Pxy, 0.25)
	cpu(getMany, nameSigV4, nameReference, 0.25)
	for _, target := range []string{nameMTLS, nameSigV4} {
		atMost(getOne.name+": "+target+", p50 × nginx", 1, ratio(getOne, target, nameNginx, p50Of))
		atMost(getOne.name+": "+target+", p50 × kubectl proxy", 0.6, ratio(getOne, target, nameKubectl, p50Of))
	}
	cpu(eight, nameSigV4, nameNginx, 1)
	for _, target := range []string{nameMTLS, nameSigV4} {
		cpu(listMany, target, nameNginx, 0.7)
		all = append(all, goal{listMany.name + ": " + target + ", requests/s × kubectl proxy", false, 1, ratio(listMany, target, nameKubectl, rateOf)})
	}
	cpu(unsigned, nameSigV4, nameNginx, 1)
	atMost("SigV4 signature, 900-byte token: µs", 1.5, func() (float64, bool) {
		if r.signature == nil {
			return 0, false
		}
		return r.signature.micros, true
	})
	atMost("SigV4 signature: allocations", 0, func() (float64, bool) {
		if r.signature == nil {
			return 0, false
		}
		return r.signature.allocations, true
	})
	watches := func(target, what string, bound float64, figure func(watched) float64) {
		atMost(fmt.Sprintf("%d idle watches: %s, %s", b.watches, target, what), bound, func() (float64, bool) {
			w, ok := r.watches[target]
			got := figure(w)
			return got, ok && got >= 0
		})
	}
	for _, target := range []string{nameMTLS, nameSigV4} {
		watches(target, "KiB each", 5, b.each)
		watches(target, "MiB in all", 70, func(w watched) float64 { return w.idle.rss })
		watches(target, "one event to all, ms", 200, func(w watched) float64 { return micros(w.event) / 1000 })
		watches(target, "descriptors more", 2*100, func(w watched) float64 { return float64(w.descriptors) })
	}
	for _, target := range []string{nameMTLS, nameSigV4} {
		atMost(idleName+": "+target+", MiB RSS", 16, func() (float64, bool) { m, ok := r.idle[target]; return m.rss, ok })
	}
	atMost(warmName+": ms", 10, func() (float64, bool) { ms, ok := r.plugin[warmName]; return ms, ok })
	atMost(coldName+": ms", 40, func() (float64, bool) { ms, ok := r.plugin[coldName]; return ms, ok })
	all = append(all, goal{linkName + ": round trips saved", false, 2, func() (float64, bool) {
		if r.link == nil {
			return 0, false
		}
		return r.link.trips, true
	}})
	// Flat: a machine's noise and a batch's thrift aside.
	few, many := spread[0], spread[len(spread)-1]
	for _, target := range []string{nameMTLS, nameSigV4} {
		atMost(fmt.Sprintf("cost of more: %s, CPU per request over %d connections × over %d", target, many.conns, few.conns), 1.25, func() (float64, bool) {
			a, ok := r.loads[key{many.name, target}]
			o, ok2 := r.loads[key{few.name, target}]
			return a.cpu / o.cpu, ok && ok2
		})
	}
	return all
}

func (b *bench) printGoals() {
	fmt.Fprintf(b.out, "\n### Goals\n\n| | goal | this run | |\n|---|---|---|---|\n")
	unmeasured := 0
	for _, g := range b.goals() {
		got, ok := g.got()
		sign := "≥"
		if g.most {
			sign = "≤"
		}
		figure, verdict := "–", "not measured"
		switch {
		case !ok && b.partial:
			continue
		case !ok:
			unmeasured++
		case g.most && got <= g.bound || !g.most && got >= g.bound:
			figure, verdict = fmt.Sprintf("%.4g", got), "met"
		default:
			figure, verdict = fmt.Sprintf("%.4g", got), "missed"
		}
		fmt.Fprintf(b.out, "| %s | %s %.3g | %s | %s |\n", g.what, sign, g.bound, figure, verdict)
	}
	if unmeasured > 0 && len(b.missing) > 0 {
		fmt.Fprintf(b.out, "\nNot compared: %s.\n", strings.Join(b.missing, "; "))
	}
}
