package transport

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func benchmark(b *testing.B, size, inFlight int) {
	body := []byte(strings.Repeat("x", size))
	s := serve(b, serverOptions{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
	tr := s.client(b, nil)
	check(b, tr.Prewarm(context.Background()))
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.SetParallelism(inFlight)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		r := request(b, context.Background(), "GET", "/", nil)
		for pb.Next() {
			res, err := tr.RoundTrip(r)
			if err != nil {
				b.Error(err)
				return
			}
			if n, err := io.Copy(io.Discard, res.Body); err != nil || int(n) != size {
				b.Errorf("%d bytes, %v", n, err)
			}
			_ = res.Body.Close()
		}
	})
	b.StopTimer()
	if st := tr.Stats(); st.Signatures != 1 {
		b.Errorf("%d signatures", st.Signatures)
	}
}

// The server runs in the same process: the figures hold both sides.
func BenchmarkGet2KiB(b *testing.B)         { benchmark(b, 2<<10, 1) }
func BenchmarkGet2KiBParallel(b *testing.B) { benchmark(b, 2<<10, 16) }
func BenchmarkList1MiB(b *testing.B)        { benchmark(b, 1<<20, 4) }

// 50 requests at once, and no connection yet.
func BenchmarkColdStart(b *testing.B) {
	s := serve(b, serverOptions{}, http.HandlerFunc(user))
	var signatures uint64
	for b.Loop() {
		tr, err := New(Options{Address: s.addr, RootCAs: s.ca.pool, Certificate: s.ca.issue(b, "alice", time.Now().Add(time.Hour))})
		check(b, err)
		together(50, func(int) {
			if _, err := tryGet(b, tr, "/"); err != nil {
				b.Error(err)
			}
		})
		signatures += tr.Stats().Signatures
		check(b, tr.Close())
	}
	b.ReportMetric(float64(signatures)/float64(b.N), "signatures/op")
}

// What a request costs that is answered here, without the server or the key.
func BenchmarkHeld(b *testing.B) {
	s := serve(b, serverOptions{clients: newAuthority(b)}, http.HandlerFunc(user))
	tr := s.client(b, nil)
	r := request(b, context.Background(), "GET", "/", nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tr.RoundTrip(r); err == nil {
			b.Fatal("a refused certificate was taken")
		}
	}
}

func BenchmarkReconnect(b *testing.B) {
	s := serve(b, serverOptions{}, http.HandlerFunc(user))
	tr := s.client(b, nil)
	for b.Loop() {
		get(b, tr, "/")
		tr.CloseIdleConnections()
	}
	b.ReportMetric(float64(tr.Stats().Signatures)/float64(b.N), "signatures/op")
}

func BenchmarkUpgrade(b *testing.B) {
	s := serve(b, serverOptions{}, http.HandlerFunc(echo))
	tr := s.client(b, nil)
	for b.Loop() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		res, err := tr.Upgrade().RoundTrip(upgradeRequest(b, ctx))
		check(b, err)
		check(b, res.Body.Close())
		cancel()
	}
}
