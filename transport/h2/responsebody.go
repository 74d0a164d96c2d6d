package h2

import (
	"io"
	"net/http"

	"golang.org/x/net/http2"
)

// answerBody is the body of an answer that RoundTrip has returned.
type answerBody struct{ x *call }

// Read implements io.Reader. It returns io.EOF only where the server has ended the
// stream.
func (b answerBody) Read(p []byte) (int, error) {
	x := b.x
	if len(p) == 0 {
		return 0, nil
	}
	x.mu.Lock()
	for x.in.size == 0 && !x.ended && x.err == nil && !x.closed {
		x.come.Wait()
	}
	switch {
	case x.closed:
		x.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	case x.in.size > 0:
		n := x.in.read(p)
		s := x.s
		x.mu.Unlock()
		s.Consumed(nil, n)
		return n, nil
	}
	err := x.err
	if err == nil {
		err = io.EOF
		x.addTrailer()
	}
	x.letGo()
	return 0, err
}

// Close implements io.Closer. What has not come yet, or was not sent yet, never will.
func (b answerBody) Close() error {
	x := b.x
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil
	}
	x.closed = true
	left := x.in.size
	x.in.reset()
	s := x.s
	x.come.Broadcast()
	x.letGo()
	s.Reset(nil, http2.ErrCodeCancel)
	if left > 0 {
		s.Consumed(nil, left) // the stream may have been complete
	}
	x.stopUpload()
	return nil
}

// addTrailer needs the lock. The fields of a trailer are there before io.EOF is.
func (x *call) addTrailer() {
	if x.trailer == nil {
		return
	}
	if x.res.Trailer == nil {
		x.res.Trailer = make(http.Header, len(x.trailer))
	}
	for name, values := range x.trailer {
		x.res.Trailer[name] = values
	}
	x.trailer = nil
}

// letGo forgets the context, if nothing is left for it to end. It is called with the
// lock, and returns without.
func (x *call) letGo() {
	var forget func() bool
	if x.closed || x.upload == nil || x.upload.finished() {
		forget, x.forgetContext = x.forgetContext, nil
	}
	x.mu.Unlock()
	if forget != nil {
		forget()
	}
}

// read takes bytes from the front.
func (q *queue) read(p []byte) (n int) {
	for n < len(p) && q.size > 0 {
		k := copy(p[n:], q.front(len(p)-n))
		q.drop(k)
		n += k
	}
	return n
}
