//go:build linux

package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
)

// onceBody is what is posted by tests that count what was sent.
const onceBody = "pay once"

// verify checks the signature of a request; a POST has onceBody.
func (q frameRequest) verify() error {
	v := sigv4.Verifier{
		Region: "eu-central-1", Service: "execute-api",
		Lookup: func(id, date, region, service string) ([]byte, sigv4.Identity, error) {
			if id != awsKeyID {
				return nil, sigv4.Identity{}, sigv4.ErrUnknownKey
			}
			return sigv4.DeriveKey(awsSecret, date, region, service), sigv4.Identity{AccessKeyID: id}, nil
		},
	}
	body := ""
	if q.field(":method") == http.MethodPost {
		body = onceBody
	}
	hash := sha256.Sum256([]byte(body))
	header := http.Header{}
	for _, f := range q.fields {
		if !f.IsPseudo() {
			header.Add(f.Name, f.Value)
		}
	}
	path, query, _ := strings.Cut(q.path(), "?")
	_, err := v.Verify(&signer.Request{
		Method: q.field(":method"), Scheme: "https", Authority: q.field(":authority"),
		Path: path, RawQuery: query, Header: header, ContentSHA256: hex.EncodeToString(hash[:]),
	})
	return err
}

// crowded asks for n paths at once, every second time with a POST, and returns
// what came of each.
func crowded(t *testing.T, client *http.Client, url string, n int) (failures []error) {
	t.Helper()
	failures = make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { _, failures[i] = ask(client, i, fmt.Sprintf("%s/crowd/%d", url, i)) })
	}
	wg.Wait()
	return failures
}

// ask sends a GET, or a POST where i is odd, and returns the answer's status.
func ask(client *http.Client, i int, url string) (status int, err error) {
	method, body := http.MethodGet, ""
	if i%2 == 1 {
		method, body = http.MethodPost, onceBody
	}
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s %s", method, url, resp.Status, resp.Header.Get("Execproxy-Error"))
	}
	return resp.StatusCode, err
}

// whole calls then for each request as soon as its body is there, with writing
// locked.
func whole(then func(q frameRequest)) frameScript {
	var mu sync.Mutex
	waiting := map[*frameConn]map[uint32]frameRequest{}
	return frameScript{
		settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 100}},
		header: func(q frameRequest) {
			if q.end {
				then(q)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if waiting[q.c] == nil {
				waiting[q.c] = map[uint32]frameRequest{}
			}
			waiting[q.c][q.id] = q
		},
		data: func(c *frameConn, id uint32, data []byte, end bool) {
			if n := uint32(len(data)); n > 0 {
				_ = c.WriteWindowUpdate(0, n)
			}
			if end {
				mu.Lock()
				q := waiting[c][id]
				delete(waiting[c], id)
				mu.Unlock()
				then(q)
			}
		},
	}
}

// TestGoAwayUnderLoad: of what is open when the server says GOAWAY, the one part
// ends on the old connection, and the rest, which was not processed, is sent again
// over another and signed anew. No client notices.
func TestGoAwayUnderLoad(t *testing.T) {
	t.Parallel()
	const crowd = 40
	var mu sync.Mutex
	var old *frameConn
	var held []frameRequest
	again := make(chan struct{}, crowd)
	u := newFrameServer(t, whole(func(q frameRequest) {
		if !strings.HasPrefix(q.path(), "/crowd/") {
			q.ok()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if old == nil {
			old = q.c
		}
		if q.c != old {
			q.ok()
			again <- struct{}{}
			return
		}
		if held = append(held, q); len(held) != crowd {
			return
		}
		first := held[:crowd/2]
		var last uint32
		for _, q := range first {
			last = max(last, q.id)
		}
		for _, q := range held[crowd/2:] {
			if q.id < last { // bodies may have come in another order
				first = append(first, q)
			}
		}
		go func() {
			time.Sleep(1100 * time.Millisecond) // a signature's time is in seconds
			_ = old.do(func() error { return old.WriteGoAway(last, http2.ErrCodeNo, nil) })
			for range crowd - len(first) {
				select {
				case <-again:
				case <-time.After(patience):
					t.Error("the rest is not sent again")
				}
			}
			for _, q := range first {
				q.later()
			}
		}()
	}))
	h := newHome(t)
	s := h.serveOn(u.url, h.sigv4Flags(u.url)...)
	client := s.client(t)
	get(t, client, u.url+"/version")
	before, _ := s.metric(t, "execproxy_signatures_total")
	for _, err := range crowded(t, client, u.url, crowd) {
		if err != nil {
			t.Error(err)
		}
	}
	twice, sent := 0, 0
	for i := range crowd {
		came := u.all(fmt.Sprintf("/crowd/%d", i))
		sent += len(came)
		for _, q := range came {
			if err := q.verify(); err != nil {
				t.Errorf("%s: %v", q.path(), err)
			}
		}
		if len(came) == 2 {
			twice++
			if came[0].field("x-amz-date") == came[1].field("x-amz-date") || came[0].field("authorization") == came[1].field("authorization") {
				t.Errorf("%s was sent again with the signature of the first time", came[0].path())
			}
			if came[0].c == came[1].c {
				t.Errorf("%s was sent again over the connection that is to be left", came[0].path())
			}
		} else if len(came) != 1 {
			t.Errorf("/crowd/%d was sent %d times", i, len(came))
		}
	}
	after, _ := s.metric(t, "execproxy_signatures_total")
	t.Logf("%d requests, %d of them sent twice; %v signatures", crowd, twice, after-before)
	if twice == 0 {
		t.Error("none was sent again: this shows nothing")
	}
	if int(after-before) != sent {
		t.Errorf("%v signatures for %d requests that were sent", after-before, sent)
	}
}

// TestRefusedStreams: what the server refuses is sent again some times, signed
// anew each time, and no oftener.
func TestRefusedStreams(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	tries := map[string]int{}
	u := newFrameServer(t, whole(func(q frameRequest) {
		mu.Lock()
		defer mu.Unlock()
		tries[q.path()]++
		var refusals int
		if _, err := fmt.Sscanf(q.path(), "/refuse/%d/", &refusals); err == nil && tries[q.path()] <= refusals {
			_ = q.c.WriteRSTStream(q.id, http2.ErrCodeRefusedStream)
			return
		}
		q.ok()
	}))
	h := newHome(t)
	s := h.serveOn(u.url, h.sigv4Flags(u.url)...)
	client := s.client(t)
	for i, c := range []struct{ refusals, status int }{{1, 200}, {1, 200}, {2, 200}, {2, 200}, {1000, 0}, {1000, 0}} {
		path := fmt.Sprintf("/refuse/%d/%d", c.refusals, i)
		before, _ := s.metric(t, "execproxy_signatures_total")
		status, err := ask(client, i, u.url+path)
		after, _ := s.metric(t, "execproxy_signatures_total")
		came := u.all(path)
		t.Logf("refused %d times: %d after %d tries, %v", c.refusals, status, len(came), err)
		switch {
		case c.status == 200 && (status != 200 || len(came) != c.refusals+1):
			t.Errorf("refused %d times and sent %d times: %v", c.refusals, len(came), err)
		case c.status == 0 && (status < 500 || len(came) < 2 || len(came) > 10):
			t.Errorf("always refused: sent %d times, answered %d, %v", len(came), status, err)
		}
		if int(after-before) != len(came) {
			t.Errorf("sent %d times, signed %v times", len(came), after-before)
		}
		for _, q := range came {
			if err := q.verify(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestNeverTwice: whatever ends a request that the server may have processed, it
// is not sent again, be it a GET; and the client is told.
func TestNeverTwice(t *testing.T) {
	t.Parallel()
	crash := func(c *frameConn) {
		_ = c.conn.NetConn().(*net.TCPConn).SetLinger(0)
		_ = c.conn.NetConn().Close()
	}
	const most = 1<<31 - 1
	ends := []struct {
		name string
		end  func(q frameRequest)
	}{
		{"TCP reset", func(q frameRequest) { crash(q.c) }},
		{"TLS end", func(q frameRequest) { _ = q.c.conn.Close() }},
		{"TCP end", func(q frameRequest) { _ = q.c.conn.NetConn().Close() }},
		{"INTERNAL_ERROR", func(q frameRequest) { _ = q.c.WriteRSTStream(q.id, http2.ErrCodeInternal) }},
		{"CANCEL", func(q frameRequest) { _ = q.c.WriteRSTStream(q.id, http2.ErrCodeCancel) }},
		{"NO_ERROR", func(q frameRequest) { _ = q.c.WriteRSTStream(q.id, http2.ErrCodeNo) }},
		{"ENHANCE_YOUR_CALM", func(q frameRequest) { _ = q.c.WriteRSTStream(q.id, http2.ErrCodeEnhanceYourCalm) }},
		{"GOAWAY above it, and the end", func(q frameRequest) {
			_ = q.c.WriteGoAway(q.id, http2.ErrCodeNo, nil)
			_ = q.c.out.Flush()
			_ = q.c.conn.Close()
		}},
		{"GOAWAY of the graceful kind, and the end", func(q frameRequest) {
			_ = q.c.WriteGoAway(most, http2.ErrCodeNo, nil)
			_ = q.c.out.Flush()
			crash(q.c)
		}},
		{"GOAWAY with an error", func(q frameRequest) {
			_ = q.c.WriteGoAway(q.id, http2.ErrCodeInternal, nil)
			_ = q.c.out.Flush()
			_ = q.c.conn.Close()
		}},
		{"the head, then refused", func(q frameRequest) {
			q.answer(false)
			_ = q.c.WriteRSTStream(q.id, http2.ErrCodeRefusedStream)
		}},
		{"DATA without a head", func(q frameRequest) { _ = q.c.WriteData(q.id, true, []byte("no head")) }},
	}
	var again atomic.Int64
	u := newFrameServer(t, whole(func(q frameRequest) {
		var i int
		if _, err := fmt.Sscanf(q.path(), "/end/%d/", &i); err == nil && len(q.c.s.all(q.path())) == 1 {
			ends[i].end(q)
			return
		} else if err == nil {
			again.Add(1)
		}
		q.ok()
	}))
	h := newHome(t)
	s := h.serveOn(u.url, h.sigv4Flags(u.url)...)
	for i, e := range ends {
		for method := range 2 {
			client := s.client(t)
			client.Timeout = 20 * time.Second
			path := fmt.Sprintf("/end/%d/%d", i, method)
			// A body that ends too early is an error of its reader.
			resp, err := func() (*http.Response, error) {
				req, err := http.NewRequest([]string{http.MethodGet, http.MethodPost}[method], u.url+path, strings.NewReader([]string{"", onceBody}[method]))
				must(t, err)
				return client.Do(req)
			}()
			switch {
			case err != nil:
				t.Errorf("%s, %s: %v", e.name, path, err)
			default:
				n, err := resp.Body.Read(make([]byte, 1))
				for err == nil {
					n, err = resp.Body.Read(make([]byte, 512))
				}
				whole := err == io.EOF
				_ = resp.Body.Close()
				if resp.StatusCode < 500 && (whole || n > 0) {
					t.Errorf("%s, %s: looks like an answer: %s", e.name, path, resp.Status)
				}
			}
			if n := len(u.all(path)); n != 1 {
				t.Errorf("%s, %s: sent %d times", e.name, path, n)
			}
		}
	}
	if n := again.Load(); n > 0 {
		t.Errorf("%d requests were processed twice", n)
	}
	get(t, s.client(t), u.url+"/version")
}

// TestGoAwayAtOnce: a server that sends connections away as soon as they are
// there, the very first one or those behind it. Who asks is served by the next
// that stays; where none does, the client is told and the server is not dialled
// without end.
func TestGoAwayAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from, to int // connections that are sent away
		served   bool
	}{
		"the first": {1, 1, true}, "two behind the first": {2, 3, true}, "all behind the first": {2, 1 << 30, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newFrameServer(t, frameScript{
				greet: func(k *frameConn) {
					_ = k.WriteSettings()
					if c.from <= k.number && k.number <= c.to {
						_ = k.WriteGoAway(0, http2.ErrCodeNo, nil)
					}
				},
				header: func(q frameRequest) {
					q.ok()
					if q.path() == "/leave" {
						_ = q.c.WriteGoAway(q.id, http2.ErrCodeNo, nil)
					}
				},
			})
			s := newHome(t).janeOn(u.url)
			client := s.client(t)
			get(t, client, u.url+"/leave")
			if c.served {
				eventually(t, patience, func() error {
					_, err := ask(client, 0, u.url+"/version")
					return err
				})
				if n := len(u.all("/version")); n != 1 {
					t.Errorf("%d reached the server", n)
				}
			} else if status, err := ask(client, 0, u.url+"/version"); status < 500 {
				t.Errorf("answered %d, %v", status, err)
			}
			all, open, _ := u.counts()
			t.Logf("%d connections, %d open", all, open)
			if most := min(c.to, 10) + 5; all > most {
				t.Errorf("the server was dialled %d times, want %d at most", all, most)
			}
		})
	}
}
