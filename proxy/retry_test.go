package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
)

// flaky is an HTTP/2 server that treats the first streams as it is told, and
// answers the others with the signature and the body it got.
type flaky struct {
	mu       sync.Mutex
	fail     int // streams still to fail
	answered int // requests that were processed
	how      func(c *h2conn, id uint32) (goOn bool)
}

func (s *flaky) serve(c *h2conn) {
	type stream struct{ sig, body string }
	open := map[uint32]*stream{}
	for f := c.next(); f != nil; f = c.next() {
		var id uint32
		var end bool
		switch f := f.(type) {
		case *xhttp2.MetaHeadersFrame:
			id, end = f.StreamID, f.StreamEnded()
			st := &stream{}
			for _, h := range f.RegularFields() {
				if h.Name == "authorization" {
					st.sig = h.Value
				}
			}
			open[id] = st
		case *xhttp2.DataFrame:
			id, end = f.StreamID, f.StreamEnded()
			if st := open[id]; st != nil {
				st.body += string(f.Data())
			}
			_ = c.WriteWindowUpdate(0, max(1, f.Length))
		default:
			continue
		}
		if !end || open[id] == nil {
			continue
		}
		s.mu.Lock()
		failing := s.fail > 0
		if failing {
			s.fail--
		} else {
			s.answered++
		}
		s.mu.Unlock()
		if failing {
			delete(open, id)
			if !s.how(c, id) {
				return
			}
			continue
		}
		c.answer(id, false, ":status", "200")
		_ = c.WriteData(id, true, []byte(open[id].sig+" "+open[id].body))
		delete(open, id)
	}
}

func refusedStream(c *h2conn, id uint32) bool {
	_ = c.WriteRSTStream(id, xhttp2.ErrCodeRefusedStream)
	return true
}

// goAwayBefore says that the stream was not processed.
func goAwayBefore(c *h2conn, id uint32) bool {
	_ = c.WriteGoAway(id-min(id, 2), xhttp2.ErrCodeNo, nil)
	c.next() // until the client closes
	return false
}

// goAwayAfter says that the stream may have been processed, and hangs up.
func goAwayAfter(c *h2conn, id uint32) bool {
	_ = c.WriteGoAway(id, xhttp2.ErrCodeNo, nil)
	return false
}

func hangUpNow(c *h2conn, id uint32) bool { return false }

func internalError(c *h2conn, id uint32) bool {
	_ = c.WriteRSTStream(id, xhttp2.ErrCodeInternal)
	return true
}

// ways gives all HTTP/2 transports: the product's, net/http's own, and golang.org/x/net's.
func ways(t testing.TB) map[string]http.RoundTripper {
	//lint:ignore SA1019 it is still in use, and retries by its own rules
	x := &xhttp2.Transport{TLSClientConfig: clientTLS("h2"), DisableCompression: true}
	t.Cleanup(func() {
		//lint:ignore SA1019 as above
		x.CloseIdleConnections()
	})
	return map[string]http.RoundTripper{"execproxy": &pinned{t: t}, "net/http": outbound(t, true), "x/net": x}
}

func TestOnlyWhatWasNotProcessedIsSentAgain(t *testing.T) {
	for name, how := range map[string]struct {
		do    func(*h2conn, uint32) bool
		again bool
	}{
		"REFUSED_STREAM":    {refusedStream, true},
		"GOAWAY before":     {goAwayBefore, true},
		"GOAWAY after":      {goAwayAfter, false},
		"connection closed": {hangUpNow, false},
		"INTERNAL_ERROR":    {internalError, false},
	} {
		for _, body := range []string{"hashed", "streamed", "large"} {
			for transport := range ways(t) {
				t.Run(name+"/"+body+"/"+transport, func(t *testing.T) {
					s := &flaky{fail: 1, how: how.do}
					u := rawHTTP2(t, s.serve)
					var signatures atomic.Int32
					f := start(t, Options{Server: u, Transport: ways(t)[transport], HashBody: body == "hashed", Sign: func(ctx, *Request) (http.Header, error) {
						return http.Header{"Authorization": {fmt.Sprint("sig", signatures.Add(1))}}, nil
					}}, false)
					payload := "the body"
					if body == "large" {
						payload = strings.Repeat("x", replayLimit+1)
					}
					res, err := f.client(t, true).Post("https://x/", "a/b", strings.NewReader(payload))
					switch {
					case how.again && body == "large": // surely not processed, but gone
						msg := wantStatus(t, res, err, 503, ReasonUnavailable)
						if res.Header.Get("Retry-After") != "1" || !strings.Contains(msg, "not process") {
							t.Errorf("%v %s", res.Header, msg)
						}
					case how.again:
						if err != nil || res.StatusCode != 200 {
							t.Fatal(res, err)
						}
						if got := body2s(t, res); got != "sig2 "+payload { // signed again
							t.Errorf("the server got %q", got)
						}
					default:
						wantStatus(t, res, err, 502, ReasonBadGateway)
					}
					if s.answered > 1 || !how.again && s.answered != 0 {
						t.Errorf("processed %d times", s.answered)
					}
				})
			}
		}
	}
}

func TestServerThatAlwaysRefuses(t *testing.T) {
	s := &flaky{fail: 1 << 30, how: refusedStream}
	f := start(t, Options{Server: rawHTTP2(t, s.serve)}, false)
	res, err := f.client(t, true).Post("https://x/", "a/b", strings.NewReader("x"))
	wantStatus(t, res, err, 503, ReasonUnavailable)
	if n := f.Stats().Retries; n != attempts-1 {
		t.Errorf("%d retries", n)
	}
}

// POST load over a server that drops connections and refuses streams: each is
// processed at most once, and an answer of 200 means exactly once.
func TestNoDuplicatesUnderLoad(t *testing.T) {
	var mu sync.Mutex
	processed := map[string]int{}
	var count atomic.Int32
	u := rawHTTP2(t, func(c *h2conn) {
		ids := map[uint32]string{}
		for f := c.next(); f != nil; f = c.next() {
			switch f := f.(type) {
			case *xhttp2.MetaHeadersFrame:
				ids[f.StreamID] = f.PseudoValue("path")
			case *xhttp2.DataFrame:
				if !f.StreamEnded() {
					continue
				}
				id := f.StreamID
				switch n := count.Add(1); {
				case n%7 == 0:
					refusedStream(c, id)
					continue
				case n%31 == 0:
					goAwayBefore(c, id)
					return
				}
				mu.Lock()
				processed[ids[id]]++
				mu.Unlock()
				switch n := count.Load(); {
				case n%13 == 0:
					internalError(c, id)
				case n%37 == 0:
					return // processed, and no answer
				default:
					c.answer(id, true, ":status", "200")
				}
			}
		}
	})
	f := start(t, Options{Server: u}, false)
	c := f.client(t, true)
	var all sync.WaitGroup
	var good, bad atomic.Int32
	for w := range 8 {
		all.Go(func() {
			for i := range 50 {
				path := fmt.Sprintf("/%d/%d", w, i)
				res, err := c.Post("https://x"+path, "a/b", strings.NewReader("x"))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				mu.Lock()
				n := processed[path]
				mu.Unlock()
				switch {
				case n > 1:
					t.Errorf("%s was processed %d times", path, n)
				case res.StatusCode == 200 && n != 1, res.StatusCode == 503 && n != 0:
					t.Errorf("%s was answered %d and processed %d times", path, res.StatusCode, n)
				case res.StatusCode == 200:
					good.Add(1)
				case res.StatusCode == 502, res.StatusCode == 503:
					bad.Add(1)
				default:
					t.Errorf("%s: %d", path, res.StatusCode)
				}
			}
		})
	}
	all.Wait()
	if good.Load() == 0 || bad.Load() == 0 || f.Stats().Retries == 0 {
		t.Errorf("%d good, %d bad, %+v: the load proves nothing", good.Load(), bad.Load(), f.Stats())
	}
}

func TestIdempotencyKeyIsNoLeaveToSendTwice(t *testing.T) {
	var hits atomic.Int32
	u := scriptedKeepAlive(t, &hits)
	f := start(t, Options{Server: u, Transport: outbound(t, false)}, false)
	c := f.client(t, true)
	body2s(t, get(t, c, "https://x/warm"))
	req, _ := http.NewRequest("POST", "https://x/", nil)
	req.Header.Set("Idempotency-Key", "1")
	res, err := c.Do(req)
	wantStatus(t, res, err, 502, ReasonBadGateway)
	if n := hits.Load(); n != 2 {
		t.Errorf("the server saw %d requests, want the warm-up and one POST", n)
	}
}

// scriptedKeepAlive answers the first request of a connection, and hangs up on
// the second after it has read it.
func scriptedKeepAlive(t testing.TB, hits *atomic.Int32) *url.URL {
	return upstream(t, false, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		if r.Method == "POST" {
			if r.Header.Get("Idempotency-Key") != "1" {
				t.Error("the key did not arrive")
			}
			panic(http.ErrAbortHandler)
		}
	})
}

func TestRefusedSignatureIsMadeOnceMore(t *testing.T) {
	var signatures atomic.Int32
	valid := "sig2"
	u := upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != valid {
			w.WriteHeader(403)
			fmt.Fprint(w, "skew")
			return
		}
		fmt.Fprintf(w, "%s", b)
	})
	refused := true
	f := start(t, Options{Server: u, HashBody: true,
		Sign: func(ctx, *Request) (http.Header, error) {
			return http.Header{"Authorization": {fmt.Sprint("sig", signatures.Add(1))}}, nil
		},
		Refused: func(res *http.Response, took time.Duration) bool {
			if res.StatusCode != 403 || took <= 0 || res.Header.Get("Date") == "" {
				t.Errorf("asked with %v after %v", res, took)
			}
			return refused
		}}, false)
	c := f.client(t, true)
	res, err := c.Post("https://x/", "a/b", strings.NewReader("hello"))
	if err != nil || body2s(t, res) != "hello" {
		t.Error(res, err)
	}
	// Once, and no more.
	valid = "never"
	res, err = c.Post("https://x/", "a/b", strings.NewReader("hello"))
	if err != nil || res.StatusCode != 403 || body2s(t, res) != "skew" || signatures.Load() != 4 {
		t.Error(res, err, signatures.Load())
	}
	refused = false
	if res := get(t, c, "https://x/"); res.StatusCode != 403 || body2s(t, res) != "skew" || signatures.Load() != 5 {
		t.Error(res, signatures.Load())
	}
}

// A server that refuses before it takes the body is asked once more, with the whole body,
// whatever the transport still does with the one of the first time.
func TestRefusedBeforeTheBody(t *testing.T) {
	for _, h2 := range []bool{true, false} {
		var signatures atomic.Int32
		u := upstream(t, h2, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.Header.Get("Authorization"), "1") {
				w.WriteHeader(401) // the body is not looked at
				return
			}
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
		})
		f := start(t, Options{Server: u,
			Sign: func(ctx, *Request) (http.Header, error) {
				return http.Header{"Authorization": {fmt.Sprint("sig", signatures.Add(1)%2)}}, nil
			},
			Refused: func(*http.Response, time.Duration) bool { return true },
		}, false)
		c := f.client(t, true)
		for i := range 300 {
			// Small ones, and what is streamed.
			text := strings.Repeat(fmt.Sprint(i%10, " "), 1+i%2*40_000)
			if signatures.Load()%2 == 1 {
				signatures.Add(1)
			}
			res, err := c.Post("https://x/", "a/b", strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			switch got := body2s(t, res); {
			case res.StatusCode == 401 && len(text) > replayLimit: // cut in its middle; it cannot be had again
			case res.StatusCode != 200 || got != text:
				t.Fatalf("HTTP/2 %v: %s with %d bytes, sent %d", h2, res.Status, len(got), len(text))
			}
		}
	}
}
