//go:build linux

package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// hashing takes uploads, and gives windows back as it likes.
type hashing struct {
	mu   sync.Mutex
	sums map[uint32]hash.Hash
	size map[uint32]int64
}

func (h *hashing) take(c *frameConn, id uint32, data []byte, end bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sums == nil {
		h.sums, h.size = map[uint32]hash.Hash{}, map[uint32]int64{}
	}
	if h.sums[id] == nil {
		h.sums[id] = sha256.New()
	}
	_, _ = h.sums[id].Write(data)
	h.size[id] += int64(len(data))
	if end {
		q := frameRequest{c: c, id: id}
		q.answer(false)
		_ = c.WriteData(id, true, []byte(hex.EncodeToString(h.sums[id].Sum(nil))))
	}
}

// TestServerSettings: SETTINGS of the server that are lawful and rare. A body of a
// mebibyte, headers that repeat and answers pass with each of them.
func TestServerSettings(t *testing.T) {
	t.Parallel()
	body := make([]byte, 1<<20)
	for i := range body {
		body[i] = byte(i * 7 >> 3)
	}
	sum := sha256.Sum256(body)
	want := hex.EncodeToString(sum[:])
	window := func(c *frameConn, id uint32, n int) {
		if n > 0 {
			_ = c.WriteWindowUpdate(0, uint32(n))
			_ = c.WriteWindowUpdate(id, uint32(n))
		}
	}
	for name, make := range map[string]func(h *hashing) frameScript{
		"SETTINGS are never acknowledged": func(h *hashing) frameScript {
			return frameScript{noAck: true, data: func(c *frameConn, id uint32, data []byte, end bool) {
				window(c, id, len(data))
				h.take(c, id, data, end)
			}}
		},
		"no window until later": func(h *hashing) frameScript {
			return frameScript{
				settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}},
				header: func(q frameRequest) {
					if q.end {
						q.ok()
						return
					}
					time.AfterFunc(300*time.Millisecond, func() {
						_ = q.c.do(func() error {
							return q.c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
						})
					})
				},
				data: func(c *frameConn, id uint32, data []byte, end bool) {
					if c.acks.Load() < 2 && len(data) > 0 {
						t.Error("a body was sent into a window of 0")
					}
					_ = c.WriteWindowUpdate(0, uint32(max(len(data), 1)))
					h.take(c, id, data, end)
				},
			}
		},
		"windows of a few bytes": func(h *hashing) frameScript {
			return frameScript{
				settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1000}},
				data: func(c *frameConn, id uint32, data []byte, end bool) {
					if len(data) > 1000 {
						t.Errorf("%d bytes were sent into a window of 1000", len(data))
					}
					window(c, id, len(data))
					h.take(c, id, data, end)
				},
			}
		},
		"frames of 16 MiB": func(h *hashing) frameScript {
			return frameScript{
				settings: []http2.Setting{{ID: http2.SettingMaxFrameSize, Val: 1<<24 - 1}, {ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}},
				data: func(c *frameConn, id uint32, data []byte, end bool) {
					window(c, id, len(data))
					h.take(c, id, data, end)
				},
			}
		},
		"no header table": func(h *hashing) frameScript {
			return frameScript{
				greet: func(c *frameConn) {
					_ = c.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
				},
				header: func(q frameRequest) {
					if q.c.acks.Load() > 0 {
						// From the acknowledgement on there is no table: what refers to one is wrong.
						q.c.ReadMetaHeaders.SetMaxDynamicTableSize(0)
						q.c.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(0)
					}
					if q.end {
						q.ok()
					}
				},
				data: func(c *frameConn, id uint32, data []byte, end bool) {
					window(c, id, len(data))
					h.take(c, id, data, end)
				},
			}
		},
		"settings nobody knows": func(h *hashing) frameScript {
			return frameScript{
				settings: []http2.Setting{{ID: 0x0a0a, Val: 1}, {ID: 0xffff, Val: 1<<32 - 1}, {ID: http2.SettingMaxHeaderListSize, Val: 1 << 20}},
				data: func(c *frameConn, id uint32, data []byte, end bool) {
					window(c, id, len(data))
					h.take(c, id, data, end)
				},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newFrameServer(t, make(new(hashing)))
			client := newHome(t).janeOn(u.url).client(t)
			for range 20 {
				get(t, client, u.url+"/version?with=a-query-that-repeats")
			}
			resp, err := client.Post(u.url+"/upload", "application/octet-stream", strings.NewReader(string(body)))
			must(t, err)
			got, err := io.ReadAll(resp.Body)
			must(t, err)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK || string(got) != want {
				t.Errorf("the upload is answered %s %s, want the hash %s", resp.Status, got, want)
			}
			get(t, client, u.url+"/version")
			if all, _, _ := u.counts(); all != 1 {
				t.Errorf("it took %d connections", all)
			}
		})
	}
}
