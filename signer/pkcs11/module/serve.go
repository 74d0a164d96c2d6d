package module

import (
	"errors"
	"io"
	"sync"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// ErrUnavailable is what [Available] returns in a build without PKCS#11.
var ErrUnavailable = errors.New("this build has no PKCS#11: it was built without cgo, or with the tag nopkcs11")

// handler answers requests, many at once.
type handler func(kind wire.Kind, body []byte) (wire.Message, error)

// Serve answers the requests that come from in, on out, until in ends. It does not wait for
// requests under way, as a library may hang: whoever called it ends the process when it
// returns. What the library prints must not get into out.
func Serve(in io.Reader, out io.Writer) error {
	return serve(in, out, newHandler())
}

func serve(in io.Reader, out io.Writer, handle handler) error {
	var writing sync.Mutex
	write := func(f wire.Frame) error {
		writing.Lock()
		defer writing.Unlock()
		return wire.Write(out, f)
	}
	if err := write(wire.Frame{Kind: wire.KindHello, Body: wire.Magic}); err != nil {
		return err
	}
	for {
		f, err := wire.Read(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			// If nobody reads any more, nobody writes either: Read tells.
			_ = write(answer(f, handle))
		}()
	}
}

func answer(f wire.Frame, handle handler) wire.Frame {
	m, err := handle(f.Kind, f.Body)
	clear(f.Body) // it may have held a PIN
	if err != nil {
		failed := &wire.Failed{}
		if !errors.As(err, &failed) {
			failed = &wire.Failed{Problem: wire.ProblemRequest, Detail: err.Error()}
		}
		return wire.Frame{ID: f.ID, Kind: wire.KindFailed, Body: wire.Encode(failed)}
	}
	reply := wire.Frame{ID: f.ID, Kind: wire.KindDone}
	if m != nil {
		reply.Body = wire.Encode(m)
	}
	return reply
}
