package proxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hashing gives options of a signer that sends the hash it was shown along,
// and an upstream that compares it with what came.
func hashing(t testing.TB, h2 bool) (Options, *atomic.Int64) {
	var good atomic.Int64
	u := upstream(t, h2, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		if err != nil {
			return
		}
		want := r.Header.Get("X-Amz-Content-Sha256")
		if want != hex.EncodeToString(h.Sum(nil)) && want != unsignedPayload {
			t.Errorf("%d bytes came with the wrong hash %q", n, want)
		}
		if want != unsignedPayload && n > 0 && r.ContentLength != n {
			t.Errorf("%d bytes came with length %d", n, r.ContentLength)
		}
		good.Add(1)
		fmt.Fprint(w, want[:8], " ", n)
	})
	return Options{Server: u, Transport: outbound(t, h2), HashBody: true, Sign: func(_ ctx, r *Request) (http.Header, error) {
		return http.Header{"X-Amz-Content-Sha256": {r.ContentSHA256}, "Authorization": {"sig"}}, nil
	}}, &good
}

func post(c *http.Client, n int, chunked bool) (*http.Response, error) {
	var rd io.Reader = bytes.NewReader(bytes.Repeat([]byte{'x'}, n))
	if chunked {
		rd = io.MultiReader(rd)
	}
	return c.Post("https://x/", "application/json", rd)
}

func TestHashedBodies(t *testing.T) {
	const max = 3 << 20
	for _, h2 := range []bool{false, true} {
		o, _ := hashing(t, h2)
		f := start(t, o, false)
		for _, in2 := range []bool{false, true} {
			c := f.client(t, in2)
			for _, chunked := range []bool{false, true} {
				for _, n := range []int{0, 1, 2048, chunkSize - 1, chunkSize, chunkSize + 1, max - 1, max} {
					res, err := post(c, n, chunked)
					if err != nil {
						t.Fatal(err)
					}
					if got := body2s(t, res); res.StatusCode != 200 || !strings.HasSuffix(got, fmt.Sprintf(" %d", n)) {
						t.Errorf("out h2=%v in h2=%v chunked=%v %d bytes: %d %s", h2, in2, chunked, n, res.StatusCode, got)
					}
				}
				res, err := post(c, max+1, chunked)
				wantStatus(t, res, err, 413, ReasonTooLarge)
			}
		}
		if got := o.HashMemory; got != 0 {
			t.Error(got)
		}
		if !f.memory.sem.TryAcquire(defaultHashMemory) {
			t.Error("memory was not given back")
		}
	}
}

func TestEmptyBodyHash(t *testing.T) {
	if sum := sha256.Sum256(nil); hex.EncodeToString(sum[:]) != emptySHA256 {
		t.Error("wrong constant")
	}
}

func TestUnsignedPayload(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		o, _ := hashing(t, h2)
		o.UnsignedPayload = true
		o.MaxHashedBody = 100_000
		f := start(t, o, false)
		c := f.client(t, true)
		for _, chunked := range []bool{false, true} {
			for n, want := range map[int]string{100_000: "", 100_001: "UNSIGNED", 1_000_000: "UNSIGNED"} {
				res, err := post(c, n, chunked)
				if err != nil {
					t.Fatal(err)
				}
				if got := body2s(t, res); !strings.HasSuffix(got, fmt.Sprintf(" %d", n)) || (want != "") != strings.HasPrefix(got, "UNSIGNED") {
					t.Errorf("h2=%v chunked=%v %d: %d %s", h2, chunked, n, res.StatusCode, got)
				}
			}
		}
	}
}

func TestEndlessChunks(t *testing.T) {
	o, good := hashing(t, true)
	f := start(t, o, false)
	for _, h2 := range []bool{false, true} {
		var sent atomic.Int64
		req, _ := http.NewRequest("POST", "https://x/", readerFunc(func(p []byte) (int, error) { sent.Add(int64(len(p))); return len(p), nil }))
		res, err := f.client(t, h2).Do(req)
		if err == nil || h2 { // an HTTP/1.1 client may see the hang-up before the answer
			wantStatus(t, res, err, 413, ReasonTooLarge)
		}
		if n := sent.Load(); n > 16<<20 {
			t.Errorf("h2=%v: %d bytes were read", h2, n)
		}
	}
	if good.Load() != 0 {
		t.Error("something was sent")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Two hundred uploads at once over one HTTP/2 connection: all of them succeed
// in the end, memory stays under the cap, and no upload waits for another one
// that waits for it.
func TestManyUploadsAtOnce(t *testing.T) {
	o, good := hashing(t, true)
	o.HashMemory = 8 << 20
	f := start(t, o, false)
	c := f.client(t, true)
	const uploads, size = 200, 512 << 10
	payload := bytes.Repeat([]byte{'y'}, size)
	var all sync.WaitGroup
	var busy atomic.Int64
	for range uploads {
		all.Go(func() {
			for {
				res, err := c.Post("https://x/", "a/b", bytes.NewReader(payload))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 429 {
					if res.StatusCode != 200 {
						t.Error(res.StatusCode)
					}
					return
				}
				if res.Header.Get("Retry-After") != "1" {
					t.Errorf("429 without Retry-After: %v", res.Header)
				}
				busy.Add(1)
				time.Sleep(10 * time.Millisecond) // the client's Retry-After, in small
			}
		})
	}
	all.Wait()
	if good.Load() != uploads {
		t.Errorf("%d of %d arrived", good.Load(), uploads)
	}
	t.Logf("%d were told to come back", busy.Load())
}

func TestMemoryWaitEnds(t *testing.T) {
	o, good := hashing(t, true)
	f := start(t, o, false)
	f.memoryWait = time.Millisecond
	if !f.memory.sem.TryAcquire(defaultHashMemory) {
		t.Fatal("memory is in use")
	}
	for _, h2 := range []bool{false, true} {
		res, err := post(f.client(t, h2), 100, false)
		wantStatus(t, res, err, 429, ReasonTooManyRequests)
	}
	f.memoryWait = time.Minute
	got := make(chan *http.Response)
	go func() {
		res, err := post(f.client(t, true), 100, false)
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	select {
	case res := <-got:
		t.Fatalf("did not wait: %v", res)
	case <-time.After(50 * time.Millisecond):
	}
	f.memory.sem.Release(defaultHashMemory)
	if res := <-got; body2s(t, res) == "" || good.Load() != 1 {
		t.Error(res)
	}
}

func TestBodyIsStreamed(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		came := make(chan string, 10)
		u := upstream(t, h2, func(w http.ResponseWriter, r *http.Request) {
			buf := make([]byte, 100)
			for {
				n, err := r.Body.Read(buf)
				if n > 0 {
					came <- string(buf[:n])
				}
				if err != nil {
					return
				}
			}
		})
		f := start(t, Options{Server: u, Transport: outbound(t, h2)}, false)
		for _, in2 := range []bool{false, true} {
			for _, length := range []int64{-1, 10 + 10} {
				if length > 0 && !(h2 && in2) {
					continue // net/http's HTTP/1.1 client sends pieces of a body of known length together
				}
				pr, pw := io.Pipe()
				req, _ := http.NewRequest("POST", "https://x/", pr)
				req.ContentLength = length
				done := make(chan struct{})
				go func() {
					defer close(done)
					res, err := f.client(t, in2).Do(req)
					if err != nil || res.StatusCode != 200 {
						t.Error(res, err)
						return
					}
					res.Body.Close()
				}()
				for _, part := range []string{"first", "other"} {
					fmt.Fprint(pw, part)
					if got := <-came; got != part { // before the client goes on
						t.Errorf("%q came", got)
					}
				}
				fmt.Fprint(pw, "the end...")
				pw.Close()
				<-came
				<-done
			}
		}
	}
}

func TestClientBodyBreaksOff(t *testing.T) {
	for _, hash := range []bool{false, true} {
		finished := make(chan error, 10)
		u := upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			finished <- err
		})
		f := start(t, Options{Server: u, HashBody: hash, Sign: func(ctx, *Request) (http.Header, error) { return nil, nil }}, false)
		for _, head := range []string{"Content-Length: 10\r\n\r\n12345", "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n", "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\nzz\r\n"} {
			c, r := f.raw(t, "POST / HTTP/1.1\r\nHost: x\r\n"+head)
			_ = c.CloseWrite()
			if res, err := http.ReadResponse(r, nil); err == nil && res.StatusCode != 400 {
				t.Errorf("hash=%v %q: %d", hash, head, res.StatusCode)
			}
			if !hash {
				if err := <-finished; err == nil {
					t.Errorf("%q: the server took it for complete", head)
				}
			}
		}
		if hash && len(finished) != 0 {
			t.Error("a broken body was sent")
		}
		h := newH2Client(t, f)
		id := h.send(false, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/", "content-length", "10")
		_ = h.WriteData(id, true, []byte("12345"))
		if got := h.answer(id); got != "400" && got != "PROTOCOL_ERROR" {
			t.Errorf("hash=%v, short HTTP/2 body: %s", hash, got)
		}
		for _, bad := range [][]string{{"content-length", "5", "content-length", "6"}, {"content-length", "x"}, {"content-length", "-1"}} {
			h := newH2Client(t, f)
			id := h.send(false, append([]string{":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/"}, bad...)...)
			if got := h.answer(id); got != "400" && got != "PROTOCOL_ERROR" {
				t.Errorf("%v: %s", bad, got)
			}
		}
	}
}

// An upload that the server gives up must not hang in a client that stalls.
// (Over HTTP/1.1 it does: net/http's transport waits for its own reader.)
func TestServerRefusesStalledUpload(t *testing.T) {
	u := upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = r.Body.Read(make([]byte, 1))
		panic(http.ErrAbortHandler)
	})
	f := start(t, Options{Server: u}, false)
	if code := f.rawCode(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345"); code != 502 {
		t.Errorf("HTTP/1.1: %d", code)
	}
	h := newH2Client(t, f)
	id := h.send(false, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/")
	_ = h.WriteData(id, false, []byte("12345"))
	if got := h.answer(id); got != "502" {
		t.Errorf("HTTP/2: %s", got)
	}
}

func TestEarlyAnswerToStalledUpload(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		u := upstream(t, h2, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(403)
			fmt.Fprint(w, "no")
		})
		f := start(t, Options{Server: u, Transport: outbound(t, h2)}, false)
		defer func() {
			if t.Failed() {
				t.Log(f.logs.String())
			}
		}()
		for _, head := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
			if code := f.rawCode(t, "POST / HTTP/1.1\r\nHost: x\r\n"+head+"\r\n\r\n5\r\n"); code != 403 {
				t.Errorf("h2=%v %s: %d", h2, head, code)
			}
		}
	}
}

func TestExpectContinue(t *testing.T) {
	u := upstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Expect") != "" {
			t.Error("Expect was forwarded")
		}
		_, _ = w.Write(b)
	})
	f := start(t, Options{Server: u}, false)
	c, r := f.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
	if line, _ := r.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("got %q", line)
	}
	_, _ = r.ReadString('\n')
	fmt.Fprint(c, "hello")
	res, err := http.ReadResponse(r, nil)
	if err != nil || body2s(t, res) != "hello" {
		t.Error(res, err)
	}
	if code := f.rawCode(t, "POST / HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\nContent-Length: 5\r\n\r\n"); code != 417 {
		t.Errorf("unknown expectation: %d", code)
	}
}

func TestTrailersBothWays(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, hash := range []bool{false, true} {
			u := upstream(t, h2, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				_, _ = io.Copy(w, r.Body)
				if len(r.Trailer) != 1 || r.Trailer.Get("X-Up") != "up" {
					t.Errorf("h2=%v: trailer %v", h2, r.Trailer)
				}
				w.Header().Set("X-Sum", "down")
				w.Header().Set(http.TrailerPrefix+"X-Late", "late")
			})
			f := start(t, Options{Server: u, Transport: outbound(t, h2), HashBody: hash, Sign: func(ctx, *Request) (http.Header, error) { return nil, nil }}, false)
			for _, in2 := range []bool{false, true} {
				req, _ := http.NewRequest("POST", "https://x/", io.MultiReader(strings.NewReader("data")))
				req.Trailer = http.Header{"X-Up": {"up"}, "X-Remote-User": {"admin"}}
				res, err := f.client(t, in2).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				if got := body2s(t, res); got != "data" || res.Trailer.Get("X-Sum") != "down" || res.Trailer.Get("X-Late") != "late" {
					t.Errorf("out h2=%v in h2=%v hash=%v: %q, trailer %v", h2, in2, hash, got, res.Trailer)
				}
			}
		}
	}
}

func TestHashMemoryMustHoldOneBody(t *testing.T) {
	_, err := New(Options{Server: &url.URL{Scheme: "https", Host: "x"}, Transport: outbound(t, true), HashMemory: 1 << 20})
	if err == nil || !strings.Contains(err.Error(), "HashMemory") {
		t.Error(err)
	}
}

// Readers that outlive the request never see the next one's bytes.
func TestReleasedMemoryIsNotReadable(t *testing.T) {
	m := newMemory(chunkSize)
	h := m.tryReserve(chunkSize)
	if err := h.fill(strings.NewReader("secret of the first"), io.Discard); err != nil {
		t.Fatal(err)
	}
	rd := h.reader()
	if b := make([]byte, 6); true {
		if n, err := rd.Read(b); n != 6 || err != nil || string(b) != "secret" {
			t.Fatal(n, err)
		}
	}
	h.release()
	next := m.tryReserve(chunkSize)
	if next == nil {
		t.Fatal("memory was not given back")
	}
	if err := next.fill(strings.NewReader("secret of the second"), io.Discard); err != nil {
		t.Fatal(err)
	}
	if n, err := rd.Read(make([]byte, 100)); n != 0 || !errors.Is(err, errReleased) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}
