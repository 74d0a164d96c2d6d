package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer/sigv4"
	"github.com/execproxy/execproxy/transport/h2"
)

// testStreams is a way out with one connection, and with another when that one takes no more.
type testStreams struct {
	addr    string
	o       h2.Options
	dialing sync.Mutex
	mu      sync.Mutex
	conn    *h2.Conn
	retired bool
	ended   bool
	all     sync.WaitGroup
}

func newTestStreams(t testing.TB, server *url.URL) *testStreams {
	return newTestStreamsWith(t, server, h2.Options{MaxStreamWindow: 4 << 20, MaxFrame: 256 << 10})
}

func newTestStreamsWith(t testing.TB, server *url.URL, o h2.Options) *testStreams {
	s := &testStreams{addr: server.Host, o: o}
	t.Cleanup(func() {
		s.mu.Lock()
		s.ended = true
		if s.conn != nil {
			s.conn.Close()
		}
		s.mu.Unlock()
		s.all.Wait()
	})
	s.dial() // not from TryReserve: who calls that must not wait
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.conn.Ping(ctx)
	}
	return s
}

func (s *testStreams) dial() {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		return // the handler tells
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	tc := tls.Client(h2.NewWire(c), clientTLS("h2", "http/1.1"))
	if err := tc.Handshake(); err != nil || tc.ConnectionState().NegotiatedProtocol != "h2" {
		c.Close()
		return
	}
	_ = c.SetDeadline(time.Time{})
	var conn *h2.Conn
	o := s.o
	o.Retired = func() {
		s.mu.Lock()
		s.retired = s.retired || s.conn == conn
		s.mu.Unlock()
	}
	conn = h2.New(tc, o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.retired = conn, false
	s.all.Go(func() { _ = conn.Run() })
	if s.ended {
		conn.Close()
	}
}

func (s *testStreams) TryReserve() *h2.Conn {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c == nil || !c.Reserve() {
		return nil
	}
	return c
}

func (s *testStreams) Reserve(context.Context) (*h2.Conn, error) {
	if c := s.TryReserve(); c != nil {
		return c, nil
	}
	s.dialing.Lock()
	defer s.dialing.Unlock()
	s.mu.Lock()
	again := s.retired && !s.ended
	s.mu.Unlock()
	if again {
		s.dial()
	}
	if c := s.TryReserve(); c != nil {
		return c, nil
	}
	return nil, errors.New("no connection")
}

// RoundTrip is the way out of the handlers.
func (s *testStreams) RoundTrip(r *http.Request) (*http.Response, error) {
	c, err := s.Reserve(r.Context())
	if err != nil {
		return nil, err
	}
	res, err := c.RoundTrip(r)
	if errors.Is(err, h2.ErrUnprocessed) {
		err = errors.Join(errUnsent, err)
	}
	return res, err
}

func (s *testStreams) StreamError(err error) error { return err }

// startPassing is start, for HTTP/2 clients alone, with no handler to fall back on.
func startPassing(t testing.TB, o Options) *front {
	t.Helper()
	if o.Streams == nil {
		o.Streams = newTestStreams(t, o.Server)
	}
	o.Transport = http.DefaultTransport
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{Proxy: p}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	f.network, f.addr = l.Addr().Network(), l.Addr().String()
	streams := p.UnixStreams()
	serveStreams(t, l, h2.Options{Begin: func(b *h2.Batch, s *h2.Stream, fields []h2.Field, end bool) {
		if !streams.Begin(b, s, fields, end, nil, nil) {
			t.Errorf("not passed: %v", fields)
		}
	}})
	t.Cleanup(p.Close)
	return f
}

func TestPass(t *testing.T) {
	server := upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Length", strconv.FormatInt(n, 10))
		w.Header().Set("X-Target", r.RequestURI)
		if size, _ := strconv.Atoi(r.URL.Query().Get("size")); size > 0 {
			_, _ = w.Write(bytes.Repeat([]byte{'x'}, size))
		}
	})
	f := startPassing(t, Options{Server: server})
	c := f.client(t, true)
	for _, size := range []int{0, 1, 2048, 100_000, 3 << 20} {
		for _, up := range []int{-1, 0, 5, 100_000, 2 << 20} {
			var body io.Reader
			method := http.MethodGet
			if up >= 0 {
				method, body = http.MethodPost, bytes.NewReader(make([]byte, up))
			}
			target := "/api//v1/%2f?size=" + strconv.Itoa(size)
			r, _ := http.NewRequest(method, "https://upstream.test"+target, body)
			res, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || len(got) != size || res.StatusCode != 200 {
				t.Fatalf("%d up, %d down: %d %v, %d bytes", up, size, res.StatusCode, err, len(got))
			}
			if n := res.Header.Get("X-Length"); n != strconv.Itoa(max(up, 0)) {
				t.Errorf("server got %s bytes of %d", n, up)
			}
			if res.Header.Get("X-Target") != target {
				t.Errorf("target %s became %s", target, res.Header.Get("X-Target"))
			}
		}
	}
}

func TestPassMany(t *testing.T) {
	server := upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat(r.URL.Path, 50))
	})
	f := startPassing(t, Options{Server: server})
	var all sync.WaitGroup
	for n := range 4 {
		c := f.client(t, true)
		for k := range 8 {
			all.Go(func() {
				for i := range 50 {
					path := "/" + strconv.Itoa(n*1000+k*100+i)
					res, err := c.Get("https://upstream.test" + path)
					if err != nil {
						t.Error(err)
						return
					}
					got, _ := io.ReadAll(res.Body)
					res.Body.Close()
					if string(got) != strings.Repeat(path, 50) {
						t.Errorf("%s: %q", path, got)
					}
				}
			})
		}
	}
	all.Wait()
}

func BenchmarkPass(b *testing.B) { benchmarkPass(b, Options{}) }

func BenchmarkPassSigV4(b *testing.B) {
	creds := sigv4.NewCredentials(credentials.NewStaticCredentialsProvider("AKIDBENCH", "secret", strings.Repeat("t", 900)), sigv4.CacheOptions{})
	s, err := sigv4.New(sigv4.Options{Region: "eu-central-1", Service: "eks", Credentials: creds})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := creds.Retrieve(b.Context()); err != nil {
		b.Fatal(err)
	}
	benchmarkPass(b, Options{Sign: s.SignRequest, SignFields: s.SignFields, HashBody: true, Refused: func(*http.Response, time.Duration) bool { return false }})
}

// The client and the server are in the figures too: compare runs, not systems.
func benchmarkPass(b *testing.B, o Options) {
	payload := bytes.Repeat([]byte{'x'}, 2048)
	o.Server = scripted(b, func(bt *h2.Batch, s *h2.Stream, _ []h2.Field, _ bool) {
		s.Header(bt, okHeader, false)
		_, _ = s.Write(bt, payload, true)
	})
	f := startPassing(b, o)
	c := f.client(b, true)
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			res, err := c.Get("https://upstream.test/api/v1/pods?limit=500")
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	})
}
