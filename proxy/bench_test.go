package proxy

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"testing"
)

func benchmark(b *testing.B, o Options, do func(c *http.Client) (*http.Response, error)) {
	payload := bytes.Repeat([]byte{'x'}, 2048)
	o.Server = upstream(b, true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(payload)
	})
	o.Logger = slog.New(slog.DiscardHandler)
	f := start(b, o, false)
	c := f.client(b, true)
	one := func() {
		res, err := do(c)
		if err != nil {
			b.Error(err)
			return
		}
		if n, _ := io.Copy(io.Discard, res.Body); n != 2048 {
			b.Errorf("%d: %d bytes", res.StatusCode, n)
		}
		res.Body.Close()
	}
	one()
	b.ReportAllocs()
	b.SetParallelism(8) // times GOMAXPROCS in flight
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			one()
		}
	})
}

// The client and the server are in the figures too: compare runs, not systems.
func BenchmarkGET2KiB(b *testing.B) {
	benchmark(b, Options{}, func(c *http.Client) (*http.Response, error) { return c.Get("https://x/api/v1/pods?limit=500") })
}

func BenchmarkGET2KiBSigned(b *testing.B) {
	benchmark(b, Options{HashBody: true, Sign: func(ctx, *Request) (http.Header, error) {
		return http.Header{"Authorization": {"AWS4-HMAC-SHA256 x"}, "X-Amz-Date": {"d"}}, nil
	}}, func(c *http.Client) (*http.Response, error) { return c.Get("https://x/api/v1/pods?limit=500") })
}

func BenchmarkPOST64KiBHashed(b *testing.B) {
	body := bytes.Repeat([]byte{'y'}, 64<<10)
	benchmark(b, Options{HashBody: true, Sign: func(ctx, *Request) (http.Header, error) { return nil, nil }},
		func(c *http.Client) (*http.Response, error) {
			return c.Post("https://x/", "a/b", bytes.NewReader(body))
		})
}

// BenchmarkHandler is the handler alone: no sockets on either side.
func BenchmarkHandler(b *testing.B) {
	payload := bytes.Repeat([]byte{'x'}, 2048)
	p, err := New(Options{Server: mustURL("https://server:6443"), Transport: canned(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ContentLength: 2048, Body: io.NopCloser(bytes.NewReader(payload)),
			Header: http.Header{"Content-Type": {"application/json"}, "Date": {"d"}, "Audit-Id": {"7"}}}, nil
	})})
	if err != nil {
		b.Fatal(err)
	}
	h := p.Unix()
	r, _ := http.NewRequest("GET", "https://x/api/v1/pods?limit=500", nil)
	r.RequestURI, r.ProtoMajor, r.TLS = "/api/v1/pods?limit=500", 2, verifiedState()
	r.Header = http.Header{"Accept": {"application/json"}, "Accept-Encoding": {"gzip"}, "User-Agent": {"kubectl"}}
	w := discard{}
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(w, r)
	}
}
