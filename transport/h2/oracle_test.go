package h2

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// told is a request as a handler sees it.
func told(r *http.Request) string {
	var b bytes.Buffer
	_ = r.Header.WriteSubset(&b, nil)
	return fmt.Sprintf("%s %q host %q uri %q url %#v %s %d.%d length %d trailer %v tls %v %v remote %v header %q",
		r.Method, r.URL.String(), r.Host, r.RequestURI, *r.URL, r.Proto, r.ProtoMajor, r.ProtoMinor, r.ContentLength, r.Trailer,
		r.TLS != nil && r.TLS.HandshakeComplete, r.TLS.NegotiatedProtocol, strings.HasPrefix(r.RemoteAddr, "127.0.0.1:"), b.String())
}

type exchange struct {
	pairs   []string
	body    string   // "" and no trailer: the request ends with its header
	trailer []string // pairs
	open    bool     // the request has no end
	handler http.HandlerFunc
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s body %q %v trailer %v", told(r), b, err, r.Trailer)
}

func set(fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		code := 0
		for i := 0; i < len(fields); i += 2 {
			switch name, value := fields[i], fields[i+1]; name {
			case "code":
				_, _ = fmt.Sscan(value, &code)
				w.WriteHeader(code)
			case "body":
				_, _ = io.WriteString(w, value)
			case "nil":
				w.Header()[value] = nil
			case "flush":
				w.(http.Flusher).Flush()
			case "panic":
				if value == "abort" {
					panic(http.ErrAbortHandler)
				}
				panic(value)
			case "read":
				_, _ = io.Copy(io.Discard, r.Body)
			default:
				w.Header().Add(name, value)
			}
		}
	}
}

var exchanges = map[string]exchange{
	"get":                    {handler: echo},
	"query":                  {pairs: []string{":path", "/a%2Fb//c;d?x=%zz&y=a+b"}, handler: echo},
	"double slash":           {pairs: []string{":path", "//a/b"}, handler: echo},
	"asterisk":               {pairs: []string{":path", "*", ":method", "OPTIONS"}, handler: echo},
	"host for authority":     {pairs: []string{":authority", "-", "host", "h:1"}, handler: echo},
	"host and authority":     {pairs: []string{"host", "h:1"}, handler: echo},
	"no host":                {pairs: []string{":authority", "-"}, handler: echo},
	"connect":                {pairs: []string{":method", "CONNECT", ":path", "-", ":scheme", "-", ":authority", "a:1"}, handler: echo},
	"connect to nobody":      {pairs: []string{":method", "CONNECT", ":path", "-", ":scheme", "-", ":authority", "-"}, handler: echo},
	"scheme http":            {pairs: []string{":scheme", "http"}, handler: echo},
	"scheme ftp":             {pairs: []string{":scheme", "ftp"}, handler: echo},
	"user in authority":      {pairs: []string{":authority", "a@b"}, handler: echo},
	"cookies":                {pairs: []string{"cookie", "a=1", "cookie", "b=2"}, handler: echo},
	"fields twice":           {pairs: []string{"x-a", "1", "x-b", "", "x-a", "2", "impersonate-extra-reason", "x"}, handler: echo},
	"te":                     {pairs: []string{"te", "trailers"}, handler: echo},
	"odd method":             {pairs: []string{":method", "M-SEARCH"}, handler: echo},
	"body":                   {pairs: []string{":method", "POST"}, body: "hello", handler: echo},
	"length":                 {pairs: []string{":method", "POST", "content-length", "5"}, body: "hello", handler: echo},
	"length of no body":      {pairs: []string{":method", "POST", "content-length", "0"}, handler: echo},
	"trailer":                {pairs: []string{"trailer", "x-a, X-B", "trailer", "content-length"}, body: "hello", trailer: []string{"x-a", "1", "x-c", "3"}, handler: echo},
	"trailer without body":   {pairs: []string{"trailer", "x-a"}, trailer: []string{"x-a", "1", "x-a", "2"}, handler: echo},
	"continue":               {pairs: []string{"expect", "100-continue", ":method", "PUT"}, body: "hello", handler: set("flush", "", "read", "")},
	"continue not wanted":    {pairs: []string{"expect", "100-continue", ":method", "PUT"}, open: true, handler: set("code", "403", "body", "no")},
	"nothing":                {handler: func(http.ResponseWriter, *http.Request) {}},
	"nothing to a head":      {pairs: []string{":method", "HEAD"}, handler: func(http.ResponseWriter, *http.Request) {}},
	"head":                   {pairs: []string{":method", "HEAD"}, handler: set("body", "hello")},
	"head with length":       {pairs: []string{":method", "HEAD"}, handler: set("Content-Length", "1000")},
	"204":                    {handler: set("code", "204", "body", "dropped")},
	"304":                    {handler: set("Etag", `"1"`, "code", "304")},
	"length declared":        {handler: set("Content-Length", "5", "body", "hello")},
	"length no number":       {handler: set("Content-Length", "-5", "body", "hello")},
	"length nil":             {handler: set("nil", "Content-Length", "body", "hello")},
	"html":                   {handler: set("body", "<html><body>")},
	"encoded":                {handler: set("Content-Encoding", "gzip", "body", "<html>")},
	"no type":                {handler: set("nil", "Content-Type", "nil", "Date", "body", "<html>")},
	"flushed":                {handler: set("flush", "", "body", "a", "flush", "", "body", "b")},
	"flushed empty":          {handler: set("Content-Length", "0", "flush", "")},
	"large":                  {handler: set("body", strings.Repeat("0123456789", 100_000))},
	"header after write":     {handler: set("body", "a", "flush", "", "X-Late", "1", "code", "500")},
	"two codes":              {handler: set("code", "201", "code", "500")},
	"header too late":        {handler: set("code", "200", "X-Late", "1", "body", "a")},
	"early":                  {handler: set("Link", "</a>", "code", "103", "X-B", "1", "code", "200", "body", "a")},
	"trailer announced":      {handler: set("Trailer", "X-A, x-b", "body", "a", "X-A", "1", "X-B", "2")},
	"trailer not set":        {handler: set("Trailer", "X-A", "body", "a")},
	"trailer prefix":         {handler: set("body", "a", "flush", "", http.TrailerPrefix+"X-A", "1", http.TrailerPrefix+"x-b", "2")},
	"trailer without a word": {handler: set("Trailer", "X-A", "code", "200", "X-A", "1")},
	"forbidden trailer":      {handler: set("Trailer", "Content-Length", "body", "a")},
	"bad fields":             {handler: set("X-A", "a\nb", "X-B", "ok", "X C", "1", "Transfer-Encoding", "chunked", "body", "a")},
	"cookies set":            {handler: set("Set-Cookie", "a=1", "Set-Cookie", "b=2")},
	"abort":                  {handler: set("panic", "abort")},
	"abort after a write":    {handler: set("body", "a", "panic", "abort")},
	"abort after a flush":    {handler: set("body", "a", "flush", "", "panic", "abort")},
	"panic":                  {handler: set("panic", "pin-2718")},
	"status 99":              {handler: set("code", "99")},
	"body not read":          {pairs: []string{":method", "POST"}, open: true, body: "hello", handler: set("body", "enough")},
	"body half read": {pairs: []string{":method", "POST"}, open: true, body: "hello", handler: func(w http.ResponseWriter, r *http.Request) {
		n, err := r.Body.Read(make([]byte, 3))
		_ = r.Body.Close()
		_, again := r.Body.Read(make([]byte, 3))
		fmt.Fprint(w, n, err, again != nil)
	}},
}

// What a handler sees and what a client gets are the same as with net/http.
func TestAsNetHTTP(t *testing.T) {
	addresses := map[string]string{}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := exchanges[r.Header.Get("X-Exchange")]
		r.Header.Del("X-Exchange")
		e.handler(w, r)
	})
	for _, kind := range []string{theirs, polled, blocking} {
		ts, _ := handle(t, kind, h)
		addresses[kind] = ts.Listener.Addr().String()
	}
	for name, e := range exchanges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := ""
			for _, kind := range []string{theirs, polled, blocking} {
				c := frameClient(t, addresses[kind])
				id := c.ask(e.body == "" && e.trailer == nil && !e.open, append(e.pairs, "x-exchange", name)...)
				if e.body != "" {
					c.must(c.WriteData(id, e.trailer == nil && !e.open, []byte(e.body)))
				}
				if e.trailer != nil {
					c.header(id, true, e.trailer...)
				}
				got := c.story(id, e.open)
				switch {
				case kind == theirs:
					want = got
				case got != want:
					t.Errorf("%s:\n%snot as with net/http:\n%s", kind, got, want)
				}
				// The connection stays good.
				if got := c.story(c.ask(true, "x-exchange", "nothing"), false); !strings.Contains(got, ":status: 200") {
					t.Errorf("%s: after it: %s", kind, got)
				}
			}
		})
	}
}
