package proxy

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Copy buffers. A stream that is idle holds the small one: ten thousand idle
// watches would pin over a gigabyte of large ones.
const (
	smallBuffer = 4 << 10
	largeBuffer = 128 << 10
)

// buffers are the pools of copy buffers of one Proxy.
type buffers struct{ small, large sync.Pool }

func newBuffers() *buffers {
	return &buffers{
		small: sync.Pool{New: func() any { return new([smallBuffer]byte) }},
		large: sync.Pool{New: func() any { return new([largeBuffer]byte) }},
	}
}

// chunkSize is the unit in which bodies are held for hashing.
const chunkSize = 64 << 10

// memory is the space for bodies that must be hashed before they are sent:
// pooled, and capped over all requests.
type memory struct {
	sem    *semaphore.Weighted
	chunks sync.Pool
}

func newMemory(limit int64) *memory {
	return &memory{sem: semaphore.NewWeighted(limit),
		chunks: sync.Pool{New: func() any { return new([chunkSize]byte) }}}
}

// held is a body in memory. Its space is reserved before the first byte is
// read: requests that reserved as they grow would wait for each other for ever.
type held struct {
	m        *memory
	limit    int64  // bytes that fill takes
	reserved int64  // bytes taken from the cap
	extra    []byte // the byte over the limit, when there is one

	mu     sync.Mutex // readers may outlive the request: see heldReader
	chunks []*[chunkSize]byte
	size   int64
}

var (
	errReleased = errors.New("the request has ended")
	errOver     = errors.New("body over the limit")
)

func roundUp(n int64) int64 { return (n + chunkSize - 1) / chunkSize * chunkSize }

// tryReserve takes space for limit bytes if there is some.
func (m *memory) tryReserve(limit int64) *held {
	n := roundUp(limit)
	if !m.sem.TryAcquire(n) {
		return nil
	}
	return &held{m: m, limit: limit, reserved: n}
}

// reserve waits for space for limit bytes.
func (m *memory) reserve(ctx context.Context, limit int64) (*held, error) {
	n := roundUp(limit)
	if err := m.sem.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return &held{m: m, limit: limit, reserved: n}, nil
}

// fill reads src, passing each piece to each as well. It returns nil at the
// end of src, errOver when src has more bytes than the limit, and else the
// error of src.
func (h *held) fill(src io.Reader, each io.Writer) error {
	for {
		var room []byte
		var probe [1]byte
		switch at := h.size % chunkSize; {
		case h.size == h.limit:
			room = probe[:]
		case at == 0:
			h.chunks = append(h.chunks, h.m.chunks.Get().(*[chunkSize]byte))
			fallthrough
		default:
			room = h.chunks[len(h.chunks)-1][at:]
			room = room[:min(int64(len(room)), h.limit-h.size)]
		}
		n, err := src.Read(room)
		if n > 0 && h.size == h.limit {
			h.extra = append(h.extra, probe[0])
			return errOver
		}
		h.size += int64(n)
		_, _ = each.Write(room[:n]) // a hash never fails
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// trim gives back what was reserved and is not needed.
func (h *held) trim() {
	if need := roundUp(h.size); need < h.reserved {
		h.m.sem.Release(h.reserved - need)
		h.reserved = need
	}
}

// release gives everything back. Readers that are still about get an error,
// and never a byte of the next request.
func (h *held) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.chunks {
		h.m.chunks.Put(c)
	}
	h.chunks = nil
	h.m.sem.Release(h.reserved)
	h.reserved = 0
}

// reader gives the body from its start.
func (h *held) reader() io.ReadCloser { return &heldReader{h: h} }

type heldReader struct {
	h  *held
	at int64 // guarded by h.mu
}

func (r *heldReader) Read(p []byte) (int, error) {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	if r.at == r.h.size {
		return 0, io.EOF
	}
	if r.h.chunks == nil {
		return 0, errReleased
	}
	c := r.h.chunks[r.at/chunkSize][r.at%chunkSize:]
	if left := r.h.size - r.at; int64(len(c)) > left {
		c = c[:left]
	}
	n := copy(p, c)
	r.at += int64(n)
	return n, nil
}

func (r *heldReader) Close() error { return nil }
