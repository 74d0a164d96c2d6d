package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// request is what a load repeats.
type request struct {
	method, path string
	body         []byte
	size         int // bytes of the answer's body
}

// load is one kind of request, how many are in flight, and over how many
// connections.
type load struct {
	name    string
	q       *request
	flight  int
	conns   int      // 0: one, or as many as there are in flight where a connection takes one
	fresh   bool     // each request on a connection of its own
	targets []string // none: all
	mib     float64  // of payload, where CPU is told by MiB
}

var (
	getSmall = &request{method: "GET", path: smallPath, size: smallSize}
	getList  = &request{method: "GET", path: listPath, size: listSize}
	postOne  = &request{method: "POST", path: hashedPath, body: make([]byte, 1<<20), size: len(createdBody)}
	postFour = &request{method: "POST", path: unsignedPath, body: make([]byte, 4<<20), size: len(createdBody)}

	// Those that have HTTP/2 clients over a Unix socket.
	alike = []string{nameMTLS, nameSigV4, nameNginx, nameHAProxy, nameReference}

	getOne   = &load{name: "GET of 2 KiB, 1 in flight", q: getSmall, flight: 1}
	getMany  = &load{name: "GET of 2 KiB, 16 in flight", q: getSmall, flight: 16}
	getMore  = &load{name: "GET of 2 KiB, 64 in flight", q: getSmall, flight: 64}
	eight    = &load{name: "GET of 2 KiB, 8 clients with 1 in flight each", q: getSmall, flight: 8, conns: 8}
	listMany = &load{name: "LIST of 1 MiB, 4 in flight", q: getList, flight: 4, mib: 1}
	post     = &load{name: "POST of 1 MiB, 4 in flight, hashed where it is signed", q: postOne, flight: 4, mib: 1}
	unsigned = &load{name: "POST of 4 MiB, 4 in flight, UNSIGNED-PAYLOAD where it is signed", q: postFour, flight: 4, mib: 4}
	arrivals = &load{name: "new connection and one GET, 4 at once", q: getSmall, flight: 4, fresh: true, targets: alike}

	loads = []*load{getOne, getMany, getMore, eight, listMany, post, unsigned, arrivals}
)

// spread are 16 requests in flight over ever more connections.
var spread = func() (all []*load) {
	for _, n := range []int{1, 10, 100, 1000} {
		all = append(all, &load{name: fmt.Sprintf("cost of more: GET of 2 KiB, 16 in flight over %d connections", n), q: getSmall, flight: 16, conns: n,
			targets: []string{nameMTLS, nameSigV4, nameNginx, nameHAProxy}})
	}
	return all
}()

// sample is what one target did with a load in one round.
type sample struct {
	cpu      float64 // µs of the proxy per request
	p50, p99 float64 // µs
	rate     float64 // requests/s
	rss      float64 // MiB of the proxy, after the round
	all      int     // requests, those of the warm-up with them
}

// measure puts l on t for the time given, after a warm-up in which connections
// are made and pools filled.
func (b *bench) measure(ctx context.Context, t *target, l *load) (s sample, err error) {
	conns, err := open(ctx, t, l)
	if err != nil {
		return s, err
	}
	defer func() {
		for _, c := range conns {
			c.close()
		}
	}()
	for _, c := range conns {
		if c, ok := c.(*h2client); ok {
			c.gather = b.gather
		}
	}
	warm, _, err := drive(ctx, t, l, conns, b.span/4)
	if err != nil {
		return s, err
	}
	t.look()
	before, err := cpuTime(t.pids)
	if err != nil {
		return s, err
	}
	all, took, err := drive(ctx, t, l, conns, b.span)
	if err != nil {
		return s, err
	}
	after, err := cpuTime(t.pids)
	if err != nil {
		return s, err
	}
	m, err := memory(t.pids)
	if err != nil {
		return s, err
	}
	slices.Sort(all)
	n := float64(len(all))
	return sample{
		cpu:  micros(after-before) / n,
		p50:  float64(all[len(all)/2]) / 1000,
		p99:  float64(all[len(all)*99/100]) / 1000,
		rate: n / took.Seconds(),
		rss:  m.rss,
		all:  len(warm) + len(all),
	}, nil
}

// open makes the connections of a load.
func open(ctx context.Context, t *target, l *load) (all []client, err error) {
	n := max(l.conns, 1)
	if t.h1 {
		n = max(n, l.flight)
	}
	if l.fresh {
		n = 0
	}
	for range n {
		c, err := t.dial(ctx)
		if err != nil {
			for _, c := range all {
				c.close()
			}
			return nil, fmt.Errorf("connection %d of %d: %w", len(all)+1, n, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// drive keeps l.flight requests in flight for span and returns how long each
// took, in ns.
func drive(ctx context.Context, t *target, l *load, conns []client, span time.Duration) ([]int64, time.Duration, error) {
	var (
		wg      sync.WaitGroup
		workers = l.flight
		begin   = time.Now()
		end     = begin.Add(span)
	)
	if !l.fresh {
		workers = min(l.flight, len(conns))
	}
	took, errs := make([][]int64, workers), make([]error, workers)
	for i := range workers {
		took[i] = make([]int64, 0, 1<<14)
		wg.Go(func() {
			switch {
			case l.fresh:
				took[i], errs[i] = arrive(ctx, t, l.q, end, took[i])
			case len(conns) > l.flight:
				took[i], errs[i] = roam(ctx, conns, i, l, end, took[i])
			default:
				share := (l.flight + i) / workers // all shares together are l.flight
				took[i], errs[i] = conns[i].drive(l.q, share, end, took[i])
			}
		})
	}
	wg.Wait()
	for _, err := range append(errs, ctx.Err()) {
		if err != nil {
			return nil, 0, err
		}
	}
	return slices.Concat(took...), time.Since(begin), nil
}

// roam makes one request at a time, each on the next of every l.flight-th
// connection.
func roam(ctx context.Context, conns []client, i int, l *load, end time.Time, took []int64) ([]int64, error) {
	var err error
	for at := i; ctx.Err() == nil; {
		if took, err = conns[at].drive(l.q, 1, time.Now(), took); err != nil || !time.Now().Before(end) {
			return took, err
		}
		if at += l.flight; at >= len(conns) {
			at = i
		}
	}
	return took, ctx.Err()
}

// arrive makes a connection for each request.
func arrive(ctx context.Context, t *target, q *request, end time.Time, took []int64) ([]int64, error) {
	for ctx.Err() == nil {
		begin := nanos()
		c, err := t.dial(ctx)
		if err != nil {
			return took, err
		}
		_, err = c.drive(q, 1, time.Now(), nil)
		c.close()
		if err != nil {
			return took, err
		}
		took = append(took, nanos()-begin)
		if !time.Now().Before(end) {
			break
		}
	}
	return took, ctx.Err()
}

func nanos() int64 { return time.Now().UnixNano() }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
