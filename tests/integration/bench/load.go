package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// load is one kind of request, and how many are in flight.
type load struct {
	name   string
	path   string
	size   int // bytes of the answer
	flight int
}

var (
	getOne   = load{"GET of 2 KiB, 1 in flight", smallPath, smallSize, 1}
	getMany  = load{"GET of 2 KiB, 16 in flight", smallPath, smallSize, 16}
	listMany = load{"LIST of 1 MiB, 4 in flight", listPath, listSize, 4}
)

// sample is what one target did with a load in one round.
type sample struct {
	cpu      float64 // µs of the proxy process per request
	p50, p99 float64 // µs
	rate     float64 // requests/s
	rss      float64 // MiB of the proxy process, after the round
}

// warmUp is not measured: connections are made, pools filled.
const warmUp = 200 * time.Millisecond

// loads measures every load on every target.
func (b *bench) loads(ctx context.Context) error {
	targets, stop, err := b.targets(ctx)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprint(b.out, "\nMemory of a proxy that has served nothing yet:")
	for _, t := range targets {
		if t.pid != 0 {
			rss, err := memory(t.pid)
			if err != nil {
				return err
			}
			fmt.Fprintf(b.out, " %s %.0f MiB;", t.name, rss)
			if t.name != nameKubectl {
				b.atMost(t.name+", idle: RSS, MiB", rss, 16)
			}
		}
	}
	fmt.Fprintln(b.out)
	for _, l := range []load{getOne, getMany, listMany} {
		samples := make([][]sample, len(targets))
		for round := range b.rounds {
			for i := range targets {
				i = (i + round) % len(targets) // nobody always comes after the same
				s, err := measure(ctx, targets[i], l, b.span)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", targets[i].name, l.name, err)
				}
				b.log.Info("measured", "load", l.name, "round", round+1, "target", targets[i].name, "cpu", s.cpu, "p50", s.p50, "rate", s.rate)
				samples[i] = append(samples[i], s)
			}
		}
		b.printLoad(l, targets, samples)
	}
	return nil
}

// measure puts l on t for the time given, after a warm-up.
func measure(ctx context.Context, t *target, l load, span time.Duration) (sample, error) {
	if _, _, err := drive(ctx, t, l, warmUp); err != nil {
		return sample{}, err
	}
	before, err := cpuTime(t.pid)
	if err != nil {
		return sample{}, err
	}
	all, took, err := drive(ctx, t, l, span)
	if err != nil {
		return sample{}, err
	}
	after, err := cpuTime(t.pid)
	if err != nil {
		return sample{}, err
	}
	rss, err := memory(t.pid)
	if err != nil {
		return sample{}, err
	}
	slices.Sort(all)
	n := float64(len(all))
	return sample{
		cpu:  micros(after-before) / n,
		p50:  micros(all[len(all)/2]),
		p99:  micros(all[len(all)*99/100]),
		rate: n / took.Seconds(),
		rss:  rss,
	}, nil
}

// drive keeps l.flight requests in flight for span and returns how long each took.
func drive(ctx context.Context, t *target, l load, span time.Duration) ([]time.Duration, time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		took  = make([][]time.Duration, l.flight)
		begin = time.Now()
		end   = begin.Add(span)
	)
	for i := range l.flight {
		wg.Go(func() {
			buf := make([]byte, 64<<10)
			for now := time.Now(); now.Before(end) && ctx.Err() == nil; {
				if err := get(ctx, t, l, buf); err != nil {
					cancel(err)
					return
				}
				done := time.Now()
				took[i] = append(took[i], done.Sub(now))
				now = done
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, 0, err
	}
	return slices.Concat(took...), time.Since(begin), nil
}

// get makes one request and reads the answer to its end.
func get(ctx context.Context, t *target, l load, buf []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.base+l.path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "execproxy-bench")
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n := 0
	for {
		m, err := resp.Body.Read(buf)
		n += m
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if resp.StatusCode != http.StatusOK || n != l.size {
		return fmt.Errorf("answer %s of %d bytes, want 200 OK of %d: %.300q", resp.Status, n, l.size, buf[:min(n, len(buf))])
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
