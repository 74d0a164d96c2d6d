package transport

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// kube-apiserver's --goaway-chance, which spreads clients over its instances: 2,000 requests
// with a chance of 0.02 are some 40 new connections and one signature, as sessions resume.
func TestGoAwayChance(t *testing.T) {
	const requests, chance, workers = 2000, 0.02, 8
	var served, told atomic.Int64
	s := serve(t, serverOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		if r.ProtoMajor == 2 && rand.Float64() < chance {
			told.Add(1)
			w.Header().Set("Connection", "close") // as its filter does: GOAWAY
		}
		user(w, r)
	}))
	tr, key := s.withDevice(t, s.ca)
	together(workers, func(int) {
		for range requests / workers {
			if got, err := tryGet(t, tr, "/"); err != nil || got != "HTTP/2.0 alice" {
				t.Errorf("got %q, %v", got, err)
				return
			}
		}
	})
	equal(t, "requests served", served.Load(), requests)
	if n := key.asked.Load(); n < 1 || n >= 10 {
		t.Errorf("%d signatures, want less than 10", n)
	}
	if told.Load() == 0 || s.accepted.Load() < 2 {
		t.Errorf("%d GOAWAYs, %d connections: nothing was tried", told.Load(), s.accepted.Load())
	}
	t.Logf("%d requests, %d GOAWAYs, %d connections: %d signatures", requests, told.Load(), s.accepted.Load(), key.asked.Load())
}

// A certificate that has expired by the server's clock alone: kube-apiserver takes the
// handshake, answers 401 and closes. With sessions that is one signature; a server that
// resumes none gets what the budget has, and no more.
func TestStormOfUnauthorized(t *testing.T) {
	unauthorized := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
	})
	t.Run("resumed", func(t *testing.T) {
		s := serve(t, serverOptions{}, unauthorized)
		tr, key := s.withDevice(t, s.ca)
		for range 200 {
			get(t, tr, "/")
		}
		equal(t, "signatures for 200 requests", key.asked.Load(), 1)
	})
	t.Run("not resumed", func(t *testing.T) {
		s := serve(t, serverOptions{noTickets: true}, unauthorized)
		tr, key := s.withDevice(t, s.ca)
		const long = time.Second
		ctx, cancel := context.WithTimeout(context.Background(), long)
		defer cancel()
		begin, sent := time.Now(), 0
		for ctx.Err() == nil {
			res, err := tr.RoundTrip(request(t, ctx, "GET", "/", nil))
			if errors.Is(err, context.DeadlineExceeded) {
				break // it waits for the budget
			}
			check(t, err)
			equal(t, "status", res.StatusCode, http.StatusUnauthorized)
			_, _ = io.Copy(io.Discard, res.Body)
			check(t, res.Body.Close())
			sent++
		}
		took := time.Since(begin)
		most := budgetSize + 1 + int64(took/budgetEvery)
		if n := key.asked.Load(); n > most || n < 2 {
			t.Errorf("%d signatures in %v, want 2 to %d", n, took, most)
		}
		t.Logf("%d requests in %v: %d signatures", sent, took, key.asked.Load())
	})
}
