//go:build linux

package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestRefusedUpload: an upload is refused when some of it is on its way already,
// in each of the ways that say: not processed. Either all of it is sent again, or
// its client is told; no part of it is ever taken for the whole.
func TestRefusedUpload(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("0123456789abcdef", 64<<10)
	sum := sha256.Sum256([]byte(body))
	want := hex.EncodeToString(sum[:])
	for name, refuse := range map[string]func(c *frameConn, id uint32){
		"REFUSED_STREAM": func(c *frameConn, id uint32) { _ = c.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		"GOAWAY":         func(c *frameConn, id uint32) { _ = c.WriteGoAway(id-2, http2.ErrCodeNo, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var h hashing
			var refused atomic.Uint32
			var by atomic.Pointer[frameConn]
			u := newFrameServer(t, frameScript{data: func(c *frameConn, id uint32, data []byte, end bool) {
				if refused.CompareAndSwap(0, id) {
					by.Store(c)
					refuse(c, id)
				}
				if n := uint32(len(data)); n > 0 {
					_ = c.WriteWindowUpdate(0, n)
					_ = c.WriteWindowUpdate(id, n)
				}
				if id == refused.Load() && c == by.Load() {
					return
				}
				h.take(c, id, data, end)
			}})
			s := newHome(t).janeOn(u.url)
			client := s.client(t)
			get(t, client, u.url+"/version")
			client.Timeout = 20 * time.Second
			// No GetBody: the client itself could not send it again either.
			req, err := http.NewRequest(http.MethodPost, u.url+"/upload", io.NopCloser(strings.NewReader(body)))
			must(t, err)
			req.ContentLength = int64(len(body))
			resp, err := client.Do(req)
			must(t, err)
			got, err := io.ReadAll(resp.Body)
			must(t, err)
			_ = resp.Body.Close()
			n := len(u.all("/upload"))
			t.Logf("answered %s %s after %d tries", resp.Status, resp.Header.Get("Execproxy-Error"), n)
			switch {
			case resp.StatusCode == http.StatusOK && string(got) != want:
				t.Errorf("what arrived has hash %s, want %s", got, want)
			case resp.StatusCode != http.StatusOK && (resp.StatusCode < 500 || resp.Header.Get("Execproxy-Error") == ""):
				t.Errorf("answered %s %v", resp.Status, resp.Header)
			case resp.StatusCode == http.StatusOK && n != 2, n > 2:
				t.Errorf("answered %s, sent %d times", resp.Status, n)
			}
			get(t, client, u.url+"/version")
		})
	}
}

// TestUploadBehindGoAway: an upload that the server's GOAWAY leaves alone goes on
// over the old connection to its end, and what is new takes another.
func TestUploadBehindGoAway(t *testing.T) {
	t.Parallel()
	var h hashing
	told := make(chan struct{})
	u := newFrameServer(t, frameScript{data: func(c *frameConn, id uint32, data []byte, end bool) {
		if n := uint32(len(data)); n > 0 {
			_ = c.WriteWindowUpdate(0, n)
			_ = c.WriteWindowUpdate(id, n)
		}
		select {
		case <-told:
		default:
			_ = c.WriteGoAway(id, http2.ErrCodeNo, nil)
			close(told)
		}
		h.take(c, id, data, end)
	}})
	s := newHome(t).janeOn(u.url)
	k := s.frames(t).read()
	id, err := k.send("POST", "/upload", false)
	must(t, err)
	must(t, k.data(id, false, "first half, "))
	<-told
	// Until GOAWAY is read, requests may still take the old connection.
	eventually(t, patience, func() error {
		if _, err := k.get("/new"); err != nil {
			return err
		}
		if all, _, _ := u.counts(); all != 2 {
			return fmt.Errorf("%d connections, want a second one", all)
		}
		return nil
	})
	must(t, k.data(id, true, "second half"))
	a, err := k.answer(id)
	must(t, err)
	sum := sha256.Sum256([]byte("first half, second half"))
	if a.status != "200" || a.body.String() != hex.EncodeToString(sum[:]) {
		t.Errorf("answered %q %s", a.status, a.body.String())
	}
	if upload := u.all("/upload"); len(upload) != 1 {
		t.Errorf("the upload was sent %d times", len(upload))
	}
	eventually(t, patience, func() error {
		if _, open, _ := u.counts(); open != 1 {
			return fmt.Errorf("%d connections are open", open)
		}
		return nil
	})
}
