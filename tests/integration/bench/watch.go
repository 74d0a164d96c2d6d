package main

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// watchesPerConn is how many streams kube-apiserver lets a connection have.
const watchesPerConn = 100

// watched is what idle watches cost one target.
type watched struct {
	before, idle, after mem           // MiB: without, with all idle, after an event to all
	descriptors         int           // with all idle, over those without; -1: unknown
	event               time.Duration // from the event to the last watch that has it
	cpu                 float64       // µs of the proxy for the event, per watch
}

// idleWatches opens many watches on fresh targets, each in turn.
func (b *bench) idleWatches(ctx context.Context) error {
	name := fmt.Sprintf("%d idle watches", b.watches)
	if b.watches == 0 || !b.runs(name) {
		return nil
	}
	direct, err := b.direct(ctx)
	if err != nil {
		return err
	}
	// Not nginx: it would need a connection to the API server for each.
	fmt.Fprintf(b.out, "\n### %s, on %d connections, one proxy after the other\n\n", name, (b.watches+watchesPerConn-1)/watchesPerConn)
	fmt.Fprintln(b.out, "| | RSS before, MiB | with all idle, MiB | of it anonymous, MiB | KiB per watch | descriptors more | event to all, ms | CPU for it, µs/watch | RSS after, MiB |")
	fmt.Fprintln(b.out, "|---|---|---|---|---|---|---|---|---|")
	for _, name := range []string{nameDirect, nameMTLS, nameSigV4, nameHAProxy, nameReference, nameKubectl} {
		targets, stop, err := b.targets(ctx, name)
		if err != nil {
			return err
		}
		for _, t := range targets {
			b.log.Info("watches", "target", t.name)
			w, err := b.watchAll(ctx, direct, t)
			if err != nil {
				stop()
				return fmt.Errorf("%s: %d watches: %w", t.name, b.watches, err)
			}
			b.results.watches[t.name] = w
			if len(t.pids) == 0 {
				fmt.Fprintf(b.out, "| %s | – | – | – | – | – | %.0f | – | – |\n", t.name, micros(w.event)/1000)
				continue
			}
			fmt.Fprintf(b.out, "| %s | %.0f | %.0f | %.0f | %.1f | %d | %.0f | %.1f | %.0f |\n", t.name,
				w.before.rss, w.idle.rss, w.idle.anon, b.each(w), w.descriptors, micros(w.event)/1000, w.cpu, w.after.rss)
		}
		stop()
	}
	return nil
}

// each is the memory of one watch, in KiB.
func (b *bench) each(w watched) float64 {
	return (w.idle.rss - w.before.rss) * 1024 / float64(b.watches)
}

// holder is a connection with watches.
type holder interface {
	client
	// watch opens n watches and waits for the first event of each.
	watch(n int) error
	// event waits for one event more of each watch.
	event() error
}

func (b *bench) watchAll(ctx context.Context, direct, t *target) (w watched, err error) {
	// One request first: what a proxy needs to serve at all is no watch's.
	if err := once(ctx, t, getSmall); err != nil {
		return w, err
	}
	if err := sleep(ctx, b.settle/4); err != nil {
		return w, err
	}
	if w.before, err = memory(t.pids); err != nil {
		return w, err
	}
	open, err := descriptors(t.pids)
	if err != nil {
		return w, err
	}

	n, each := (b.watches+watchesPerConn-1)/watchesPerConn, watchesPerConn
	if t.h1 {
		n, each = b.watches, 1
	}
	conns := make([]holder, n)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.close()
			}
		}
	}()
	// A few at a time: a crowd that comes at once is another question.
	err = inTurn(n, 8, func(i int) error {
		c, err := t.dial(ctx)
		if err != nil {
			return err
		}
		conns[i] = c.(holder)
		return conns[i].watch(min(each, b.watches-i*each))
	})
	if err != nil {
		return w, err
	}
	if err := sleep(ctx, b.settle); err != nil {
		return w, err
	}
	if w.idle, err = memory(t.pids); err != nil {
		return w, err
	}
	if w.descriptors, err = descriptors(t.pids); err != nil {
		return w, err
	}
	if w.descriptors -= open; open < 0 {
		w.descriptors = -1
	}

	cpu, err := cpuTime(t.pids)
	if err != nil {
		return w, err
	}
	begin := time.Now()
	if err := once(ctx, direct, &request{method: "POST", path: eventPath, body: []byte("{}"), size: len(createdBody)}); err != nil {
		return w, err
	}
	if err := inTurn(n, n, func(i int) error { return conns[i].event() }); err != nil {
		return w, err
	}
	w.event = time.Since(begin)
	spent, err := cpuTime(t.pids)
	if err != nil {
		return w, err
	}
	w.cpu = micros(spent-cpu) / float64(b.watches)
	w.after, err = memory(t.pids)
	return w, err
}

func (c *h2client) watch(n int) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	q := &request{method: "GET", path: watchPath}
	for range n {
		if err := c.begin(q); err != nil {
			return err
		}
	}
	return c.events(1)
}

func (c *h2client) event() error { return c.events(2) }

// events reads until each watch has had so many.
func (c *h2client) events(n int) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	for {
		least := math.MaxInt
		for _, s := range c.streams {
			if s.status != 0 && s.status != 200 {
				return fmt.Errorf("answer %d to a watch", s.status)
			}
			least = min(least, s.got)
		}
		if least >= n*len(bookmark) {
			return c.out.Flush()
		}
		for more := true; more; more = !c.idle() {
			if c.idle() {
				if err := c.out.Flush(); err != nil {
					return err
				}
			}
			if s, err := c.step(); err != nil {
				return err
			} else if s != nil {
				return fmt.Errorf("a watch ended, with answer %d", s.status)
			}
		}
	}
}

func (c *h1client) watch(int) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := c.write(&request{method: "GET", path: watchPath}); err != nil {
		return err
	}
	h, err := c.readHead()
	if err != nil {
		return err
	}
	if h.status != 200 || !h.chunked {
		return fmt.Errorf("answer %d to a watch", h.status)
	}
	return c.event()
}

// event reads lines until one that is an event: the others tell of chunks.
func (c *h1client) event() error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if string(line) == bookmark {
			return nil
		}
	}
}

// once makes one request.
func once(ctx context.Context, t *target, q *request) error {
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.drive(q, 1, time.Now(), nil)
	return err
}

// inTurn calls do for 0 to n-1, a few at once, and returns the first error.
func inTurn(n, atOnce int, do func(int) error) error {
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, atOnce)
		first error
		mu    sync.Mutex
	)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := do(i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	wg.Wait()
	return first
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
