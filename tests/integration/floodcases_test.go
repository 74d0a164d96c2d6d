//go:build linux

package integration

import (
	"bytes"
	"errors"
	"strings"

	"golang.org/x/net/http2"
)

// clientFlood is something that a client sends without end.
type clientFlood struct {
	name, kind string
	// ends: it is too much, the connection must be ended with one of codes, and
	// counted. Otherwise it may be, or what is sent is served within limits, and
	// so is what the connection asks then.
	ends     bool
	codes    []http2.ErrCode
	settings []http2.Setting
	deaf     bool  // the client reads nothing until it is over
	stands   bool  // it is over when nothing moves any more
	memory   int64 // that it may cost at most
	requests int64 // that may reach the server at most
	send     func(c *frameClient) error
	mend     func(c *frameClient) error // what a client does to be served again
}

var calm = []http2.ErrCode{http2.ErrCodeEnhanceYourCalm}

const padded = 0x8

// clientFloods: RFC 9113 section 10.5, and what has a CVE.
var clientFloods = []clientFlood{
	{name: "rapid reset", kind: "reset", ends: true, codes: calm, memory: 32 << 20, requests: 5000, // CVE-2023-44487
		send: repeat(100_000, func(c *frameClient) error {
			id := c.next
			c.next += 2
			return errors.Join(c.headers(id, true, c.fieldsOf("GET", "/watch")...), c.WriteRSTStream(id, http2.ErrCodeCancel))
		})},
	{name: "made to reset", kind: "reset", ends: true, codes: append(calm, http2.ErrCodeProtocol), memory: 32 << 20, requests: 5000, // CVE-2025-8671
		send: repeat(100_000, func(c *frameClient) error {
			id := c.next
			c.next += 2
			return errors.Join(c.headers(id, true, c.fieldsOf("GET", "/watch")...),
				c.WriteRawFrame(http2.FrameWindowUpdate, 0, id, []byte{0, 0, 0, 0}))
		})},
	{name: "CONTINUATION, a byte each", kind: "continuation", ends: true, memory: 32 << 20, // CVE-2023-45288
		codes: append(calm, http2.ErrCodeProtocol, http2.ErrCodeCompression),
		send: continuations(1_000_000, func(i int) []byte {
			return []byte{"\x00\x01a\x01b"[i%5]}
		})},
	{name: "CONTINUATION, empty", kind: "continuation", ends: true, memory: 32 << 20,
		codes: append(calm, http2.ErrCodeProtocol, http2.ErrCodeCompression),
		send:  continuations(1_000_000, func(int) []byte { return nil })},
	{name: "CONTINUATION, full", kind: "continuation", ends: true, memory: 32 << 20,
		codes: append(calm, http2.ErrCodeProtocol, http2.ErrCodeCompression),
		send: continuations(10_000, func(int) []byte {
			return literal(nil, "x-filler", strings.Repeat("x", 16<<10-20))[:16<<10-7]
		})},
	{name: "SETTINGS", kind: "settings", codes: calm, memory: 32 << 20,
		send: repeat(200_000, func(c *frameClient) error {
			return c.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 4096})
		})},
	{name: "SETTINGS, unread", kind: "settings", codes: calm, deaf: true, memory: 32 << 20,
		send: repeat(1_000_000, func(c *frameClient) error { return c.WriteSettings() })},
	{name: "PING, unread", kind: "ping", ends: true, codes: calm, deaf: true, memory: 32 << 20,
		send: repeat(1_000_000, func(c *frameClient) error { return c.WritePing(false, [8]byte{1}) })},
	{name: "DATA, empty", kind: "data", codes: calm, memory: 32 << 20, requests: 1, // CVE-2019-9518
		send: onStream("POST", repeat(300_000, func(c *frameClient) error { return c.WriteData(1, false, nil) }))},
	{name: "DATA, a byte in its padding", kind: "data", codes: calm, memory: 32 << 20, requests: 1,
		send: onStream("POST", repeat(300_000, func(c *frameClient) error {
			return c.WriteRawFrame(http2.FrameData, padded, 1, []byte{0})
		}))},
	{name: "window of a byte", kind: "window", codes: calm, memory: 64 << 20, requests: 1000, stands: true, // CVE-2019-9511
		settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1}},
		send: func(c *frameClient) error {
			c.spend()
			if err := repeat(100, func(c *frameClient) error {
				c.next += 2
				return c.headers(c.next-2, true, c.fieldsOf("GET", "/mebibyte")...)
			})(c); err != nil {
				return err
			}
			i := uint32(0)
			return repeat(100_000, func(c *frameClient) error {
				i++
				return errors.Join(c.WriteWindowUpdate(1+i%100*2, 1), c.WriteWindowUpdate(0, 1))
			})(c)
		}, mend: widen},
	{name: "no window, and SETTINGS that change it", kind: "settings", codes: append(calm, http2.ErrCodeFlowControl), memory: 64 << 20, requests: 1000, stands: true,
		settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}},
		send: func(c *frameClient) error {
			c.spend()
			if err := repeat(200, func(c *frameClient) error {
				c.next += 2
				return c.headers(c.next-2, true, c.fieldsOf("GET", "/mebibyte")...)
			})(c); err != nil {
				return err
			}
			i := uint32(0)
			return repeat(20_000, func(c *frameClient) error {
				i++
				return c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i % 2})
			})(c)
		}, mend: widen},
	{name: "WINDOW_UPDATE", kind: "window", codes: append(calm, http2.ErrCodeFlowControl), memory: 32 << 20,
		send: repeat(300_000, func(c *frameClient) error { return c.WriteWindowUpdate(0, 1) })},
	{name: "WINDOW_UPDATE, too much", kind: "window", ends: true, codes: []http2.ErrCode{http2.ErrCodeFlowControl}, memory: 32 << 20,
		send: repeat(4, func(c *frameClient) error { return c.WriteWindowUpdate(0, 1<<31-1) })},
	{name: "header blocks of padding alone", kind: "header", codes: append(calm, http2.ErrCodeProtocol), memory: 32 << 20, // CVE-2019-9516's class
		send: repeat(100_000, func(c *frameClient) error {
			c.next += 2
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next - 2, EndStream: true, EndHeaders: true, PadLength: 255})
		})},
	{name: "empty fields", kind: "header", codes: append(calm, http2.ErrCodeProtocol, http2.ErrCodeCompression), memory: 64 << 20, // CVE-2019-9516
		send: func(c *frameClient) error {
			block := bytes.Clone(c.block(c.fieldsOf("GET", "/version")...))
			block = append(block, bytes.Repeat(literal(nil, "", ""), 5000)...)
			return repeat(1000, func(c *frameClient) error {
				c.next += 2
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next - 2, EndStream: true, EndHeaders: true, BlockFragment: block})
			})(c)
		}},
	{name: "HPACK bomb", kind: "header", codes: append(calm, http2.ErrCodeCompression, http2.ErrCodeProtocol), memory: 64 << 20, // CVE-2016-6581
		send: func(c *frameClient) error {
			// One entry that fills the table, and 16,000 references to it: 62 MiB.
			block := bytes.Clone(c.block(c.fieldsOf("GET", "/version")...))
			block = literalIndexed(block, "x-bomb", strings.Repeat("b", 4000))
			block = append(block, bytes.Repeat([]byte{0x80 | 62}, 12<<10)...)
			return repeat(200, func(c *frameClient) error {
				c.next += 2
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next - 2, EndStream: true, EndHeaders: true, BlockFragment: block})
			})(c)
		}},
	{name: "HPACK table sizes", kind: "header", codes: append(calm, http2.ErrCodeCompression), memory: 32 << 20, requests: 100,
		send: func(c *frameClient) error {
			// At the beginning of a block, as RFC 7541 section 4.2 says, but not two at most.
			block := append(bytes.Repeat([]byte{0x20, 0x3f, 0xe1, 0x1f}, 4000), c.block(c.fieldsOf("GET", "/version")...)...)
			return repeat(100, func(c *frameClient) error {
				c.next += 2
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next - 2, EndStream: true, EndHeaders: true, BlockFragment: block})
			})(c)
		}},
	{name: "PRIORITY", kind: "priority", codes: append(calm, http2.ErrCodeProtocol), memory: 32 << 20, // CVE-2019-9513
		send: func(c *frameClient) error {
			id := uint32(1)
			return repeat(300_000, func(c *frameClient) error {
				id += 2
				return c.WritePriority(1001+id%2000, http2.PriorityParam{StreamDep: id % 999, Weight: byte(id)})
			})(c)
		}},
	{name: "unknown types", kind: "other", codes: append(calm, http2.ErrCodeProtocol), memory: 32 << 20,
		send: repeat(300_000, func(c *frameClient) error { return c.WriteRawFrame(0xbb, 0xff, 0, []byte("what")) })},
	{name: "unread answers", kind: "unread", codes: calm, deaf: true, stands: true, memory: 64 << 20, requests: 1000,
		settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}},
		send: func(c *frameClient) error {
			if err := c.do(func() error { return c.WriteWindowUpdate(0, 1<<31-1-65535) }); err != nil {
				return err
			}
			return repeat(1000, func(c *frameClient) error {
				c.next += 2
				return c.headers(c.next-2, true, c.fieldsOf("GET", "/mebibyte")...)
			})(c)
		}},
}

// repeat writes something n times, or until the peer has hung up.
func repeat(n int, write func(c *frameClient) error) func(*frameClient) error {
	return func(c *frameClient) error {
		// In pieces: what reads has to write, too.
		for left := n; left > 0; {
			if err := c.do(func() error {
				for range min(left, 1000) {
					left--
					if err := write(c); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}
}

// continuations is a header block that does not end.
func continuations(n int, fragment func(i int) []byte) func(*frameClient) error {
	return func(c *frameClient) error {
		id := c.next
		c.next += 2
		begin := func() error {
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true, BlockFragment: c.block(c.fieldsOf("GET", "/version")...)})
		}
		if err := c.do(begin); err != nil {
			return err
		}
		i := -1
		return repeat(n, func(c *frameClient) error {
			i++
			return c.WriteContinuation(id, false, fragment(i))
		})(c)
	}
}

// onStream opens stream 1 and floods it.
func onStream(method string, then func(*frameClient) error) func(*frameClient) error {
	return func(c *frameClient) error {
		if _, err := c.send(method, "/upload", false); err != nil {
			return err
		}
		return then(c)
	}
}

// spend stops giving back the windows that answers take.
func (c *frameClient) spend() {
	c.state.Lock()
	defer c.state.Unlock()
	c.credit = false
}

// widen gives up what was asked for and gives windows again.
func widen(c *frameClient) error {
	c.state.Lock()
	c.credit = true
	c.state.Unlock()
	return c.do(func() error {
		for id := uint32(1); id < c.next; id += 2 {
			if err := c.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
				return err
			}
		}
		return errors.Join(c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535}), c.WriteWindowUpdate(0, 1<<20))
	})
}

// literalIndexed is a field as HPACK's literal that enters the table, RFC 7541
// section 6.2.1.
func literalIndexed(b []byte, name, value string) []byte {
	at := len(b)
	b = literal(b, name, value)
	b[at] = 0x40
	return b
}
