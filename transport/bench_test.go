//lint:file-ignore SA1019 golang.org/x/net's own transport is what others use

package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
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

// The same request through others' transports.
func BenchmarkRoundTrip(b *testing.B) {
	s := serve(b, serverOptions{clientAuth: tls.RequestClientCert}, http.HandlerFunc(user))
	config := &tls.Config{RootCAs: s.ca.pool, ServerName: "api.test"}
	x := &http2.Transport{TLSClientConfig: config.Clone(), DisableCompression: true}
	defer x.CloseIdleConnections()
	n := &http.Transport{TLSClientConfig: config.Clone(), DisableCompression: true, ForceAttemptHTTP2: true}
	defer n.CloseIdleConnections()
	for _, rt := range []struct {
		name string
		http.RoundTripper
	}{{"execproxy", s.client(b, nil)}, {"x_net", x}, {"net_http", n}} {
		for _, inFlight := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/%d", rt.name, inFlight), func(b *testing.B) {
				b.ReportAllocs()
				work := make(chan *http.Request)
				done := make(chan struct{})
				for range inFlight {
					go func() {
						defer func() { done <- struct{}{} }()
						for r := range work {
							res, err := rt.RoundTrip(r)
							if err != nil {
								b.Error(err)
								continue
							}
							_, _ = io.Copy(io.Discard, res.Body)
							_ = res.Body.Close()
						}
					}()
				}
				r, err := http.NewRequest(http.MethodGet, "https://"+s.addr+"/", nil)
				check(b, err)
				for b.Loop() {
					work <- r
				}
				close(work)
				for range inFlight {
					<-done
				}
			})
		}
	}
}
