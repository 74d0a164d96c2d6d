package proxy

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestTwinsTell: a proxy that does something else is told from one that does
// not.
func TestTwinsTell(t *testing.T) {
	leavesNothing(t)
	const client = postHead + "accept: a\nx-a: 1\nx-a: 2\nte: trailers\ntrailer: x-sum\nHEADERS\nDATA 5000\nx-sum: 1\nHEADERS end\n"
	const server = okHead + "vary: a\nvary: b\ntrailer: X-Sum\nHEADERS\nDATA 5000\nx-sum: 2\n"
	body := func(r io.ReadCloser, change func([]byte) []byte) io.ReadCloser {
		b, err := io.ReadAll(r)
		if err != nil {
			return r
		}
		return struct {
			io.Reader
			io.Closer
		}{bytes.NewReader(change(b)), r}
	}
	for name, c := range map[string]struct {
		out   func(*http.Request)
		back  func(*http.Response)
		tells string
	}{
		"nothing":             {},
		"another method":      {out: func(r *http.Request) { r.Method = "PUT" }, tells: `"PUT"`},
		"another path":        {out: func(r *http.Request) { r.URL.Opaque += "/" }, tells: `"/api/v1/pods/"`},
		"another query":       {out: func(r *http.Request) { r.URL.ForceQuery = true }, tells: `"/api/v1/pods?"`},
		"a field less":        {out: func(r *http.Request) { delete(r.Header, "Accept") }, tells: "Accept"},
		"a field more":        {out: func(r *http.Request) { r.Header["Via"] = []string{"1.1 x"} }, tells: "Via"},
		"values turned round": {out: func(r *http.Request) { r.Header["X-A"] = []string{"2", "1"} }, tells: `"2" "1"`},
		"values joined":       {out: func(r *http.Request) { r.Header["X-A"] = []string{"1, 2"} }, tells: `"1, 2"`},
		"a byte sent wrong":   {out: func(r *http.Request) { r.Body = body(r.Body, flip) }, tells: "body is not what was sent"},
		"bytes not sent":      {out: func(r *http.Request) { r.Body = body(r.Body, func(b []byte) []byte { return b[:4999] }) }, tells: "4999 bytes"},
		"no trailer sent":     {out: func(r *http.Request) { r.Trailer = nil }, tells: "X-Sum"},
		"another status":      {back: func(r *http.Response) { r.StatusCode = 201 }, tells: "201"},
		"an answer's field less": {back: func(r *http.Response) { delete(r.Header, "Content-Type") },
			tells: "content-type"},
		"an answer's field more": {back: func(r *http.Response) { r.Header["Server"] = []string{"x"} }, tells: "server"},
		"an answer's values turned round": {back: func(r *http.Response) { r.Header["Vary"] = []string{"b", "a"} },
			tells: `"b" "a"`},
		"a byte wrong":        {back: func(r *http.Response) { r.Body = body(r.Body, flip) }, tells: "body is not what was sent"},
		"an answer cut short": {back: func(r *http.Response) { r.Body = body(r.Body, func(b []byte) []byte { return b[:4999] }) }, tells: "4999 bytes"},
		"an answer too long":  {back: func(r *http.Response) { r.Body = body(r.Body, func(b []byte) []byte { return append(b, 0) }) }, tells: "body is not what was sent"},
		"no trailer":          {back: func(r *http.Response) { r.Trailer = nil }, tells: "x-sum"},
		"an answer that breaks off": {back: func(r *http.Response) {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(r.Body, 100), broken{}), r.Body}
		}, tells: "RST INTERNAL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &twins{t: t, a: newTwin(t, "a", false, newTwinA, Options{})}
			w.b = newTwin(t, "b", false, func(t testing.TB, o Options) *front {
				to := outbound(t, true)
				o.Transport = canned(func(r *http.Request) (*http.Response, error) {
					if c.out != nil {
						c.out(r)
					}
					res, err := to.RoundTrip(r)
					if err == nil && c.back != nil {
						c.back(res)
					}
					return res, err
				})
				return start(t, o, false)
			}, Options{})
			_, differences := w.play(newScript(client, server, false), false)
			if c.tells == "" && differences != "" || !strings.Contains(differences, c.tells) {
				t.Errorf("it does not tell of %q:\n%s", c.tells, differences)
			}
			if c.tells != "" && differences == "" {
				t.Error("it tells nothing")
			}
		})
	}
}

func flip(b []byte) []byte {
	b[len(b)/2] ^= 1
	return b
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
