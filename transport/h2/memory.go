package h2

import (
	"sync"
	"sync/atomic"
)

// defaultMemory bounds what all streams keep.
const defaultMemory = 256 << 20

// Memory bounds the bytes that the streams of many connections keep because they
// cannot go out. Windows bound what one stream keeps; this is for many of them.
type Memory struct {
	limit int64
	used  atomic.Int64
}

// NewMemory bounds to limit bytes. 0: 256 MiB.
func NewMemory(limit int64) *Memory {
	if limit <= 0 {
		limit = defaultMemory
	}
	return &Memory{limit: limit}
}

// Used is what is kept now, in bytes.
func (m *Memory) Used() int64 { return m.used.Load() }

// segmentSize is what one TLS record takes (RFC 8446 section 5.1).
const segmentSize = 16 << 10

// A segment is a piece of output, or of what a stream keeps.
type segment struct {
	start, end int
	data       []byte
}

var segments = sync.Pool{New: func() any { return &segment{data: make([]byte, segmentSize)} }}

func newSegment() *segment {
	s := segments.Get().(*segment)
	s.start, s.end = 0, 0
	return s
}

func (s *segment) bytes() []byte { return s.data[s.start:s.end] }

func (s *segment) free() {
	switch len(s.data) {
	case segmentSize:
		segments.Put(s)
	case 1 << 10, 2 << 10, 4 << 10:
		smallSegments[len(s.data)>>11].Put(s)
	}
}

// smallSegments are of 1, 2 and 4 KiB.
var smallSegments [3]sync.Pool

// newSmallSegment has room for n bytes, 4 KiB at most, and not much more.
func newSmallSegment(n int) *segment {
	if n <= 512 {
		return &segment{data: make([]byte, max(n, 256))}
	}
	class := 1 << 10
	for class < n {
		class <<= 1
	}
	s, ok := smallSegments[class>>11].Get().(*segment)
	if !ok {
		s = &segment{data: make([]byte, class)}
	}
	s.start, s.end = 0, 0
	return s
}

// queue is a list of segments, written at its end and read from its beginning.
type queue struct {
	list []*segment
	size int
	// thrifty is for many queues that hold little for long: a segment of 16 KiB for
	// one event of each of ten thousand watches would be too much.
	thrifty bool
}

// Write appends p; it never fails.
func (q *queue) Write(p []byte) (int, error) {
	n := len(p)
	q.size += n
	for len(p) > 0 {
		var last *segment
		if len(q.list) > 0 {
			last = q.list[len(q.list)-1]
		}
		if last == nil || last.end == len(last.data) {
			last = q.next(len(p))
			q.list = append(q.list, last)
		}
		k := copy(last.data[last.end:], p)
		last.end += k
		p = p[k:]
	}
	return n, nil
}

func (q *queue) next(n int) *segment {
	if q.thrifty && n <= segmentSize/4 {
		return newSmallSegment(n)
	}
	return newSegment()
}

// front is the next piece, at most n bytes; drop takes it away.
func (q *queue) front(n int) []byte {
	if len(q.list) == 0 {
		return nil
	}
	p := q.list[0].bytes()
	return p[:min(n, len(p))]
}

func (q *queue) drop(n int) {
	q.size -= n
	for n > 0 {
		s := q.list[0]
		k := min(n, s.end-s.start)
		s.start += k
		n -= k
		if s.start == s.end {
			s.free()
			q.list[0] = nil
			q.list = q.list[1:]
		}
	}
	if len(q.list) == 0 {
		q.list = nil
	}
}

func (q *queue) reset() {
	for _, s := range q.list {
		s.free()
	}
	q.list, q.size = nil, 0
}

// Buffers of what was read and of what is to be written, encrypted.
const wireSize = 64 << 10

var wireBuffers = sync.Pool{New: func() any { return new([wireSize]byte) }}
