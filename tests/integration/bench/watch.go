package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// settle is how long a proxy gets to come to rest before its memory is read.
const settle = time.Second

// watched is what idle watches cost one target.
type watched struct {
	before, idle, after float64       // MiB: without, with all idle, after an event to all
	event               time.Duration // from the event to the last watch that has it
}

// idleWatches opens many watches on fresh targets, each in turn.
func (b *bench) idleWatches(ctx context.Context) error {
	if b.watches == 0 {
		return nil
	}
	targets, stop, err := b.targets(ctx)
	if err != nil {
		return err
	}
	defer stop()
	results := make([]watched, len(targets))
	for i, t := range targets {
		if results[i], err = b.watchAll(ctx, targets[0], t); err != nil {
			return fmt.Errorf("%s: %d watches: %w", t.name, b.watches, err)
		}
		b.log.Info("watched", "target", t.name, "result", results[i])
	}
	b.printWatches(targets, results)
	return nil
}

func (b *bench) watchAll(ctx context.Context, direct, t *target) (w watched, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// One request first: what a connection costs is no watch's.
	if err := get(ctx, t, load{path: smallPath, size: smallSize}, make([]byte, 4<<10)); err != nil {
		return w, err
	}
	if w.before, err = memory(t.pid); err != nil {
		return w, err
	}

	var (
		readers = make([]*bufio.Reader, b.watches)
		failed  = make(chan error, 1)
		wg      sync.WaitGroup
		slots   = make(chan struct{}, 32)
	)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	for i := range readers {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.base+watchPath, nil)
			if err != nil {
				fail(err)
				return
			}
			resp, err := t.client.Do(req)
			if err != nil {
				fail(err)
				return
			}
			context.AfterFunc(ctx, func() { _ = resp.Body.Close() })
			readers[i] = bufio.NewReaderSize(resp.Body, 256)
			if err := line(readers[i]); err != nil {
				fail(fmt.Errorf("answer %s: %w", resp.Status, err))
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return w, err
	default:
	}
	if err := sleep(ctx, settle); err != nil {
		return w, err
	}
	if w.idle, err = memory(t.pid); err != nil {
		return w, err
	}

	for _, r := range readers {
		wg.Go(func() {
			if err := line(r); err != nil {
				fail(err)
			}
		})
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, direct.base+eventPath, nil)
	if err != nil {
		return w, err
	}
	begin := time.Now()
	resp, err := direct.client.Do(req)
	if err != nil {
		return w, err
	}
	_ = resp.Body.Close()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		w.event = time.Since(begin)
	case <-time.After(30 * time.Second):
		cancel() // closes the bodies, and with them ends the readers
		<-done
		return w, fmt.Errorf("an event did not reach all of them within 30 s")
	}
	select {
	case err := <-failed:
		return w, err
	default:
	}
	w.after, err = memory(t.pid)
	return w, err
}

// line reads one event.
func line(r *bufio.Reader) error {
	for {
		_, more, err := r.ReadLine()
		if err != nil || !more {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
