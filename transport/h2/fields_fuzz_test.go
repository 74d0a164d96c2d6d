//lint:file-ignore SA1019 golang.org/x/net's own client is what others use

package h2

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// oracle is golang.org/x/net's client, and what it sends.
type oracle struct {
	cc  *http2.ClientConn
	got chan []Field
}

func newOracle(t testing.TB) *oracle {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a pipe would block both ways
	if err != nil {
		t.Fatal(err)
	}
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	_ = l.Close()
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{got: make(chan []Field, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := io.ReadFull(far, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		fr := http2.NewFramer(far, far)
		fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		_ = fr.WriteSettings()
		for {
			f, err := fr.ReadFrame()
			var malformed http2.StreamError
			if errors.As(err, &malformed) {
				o.got <- []Field{}
				_ = fr.WriteRSTStream(malformed.StreamID, http2.ErrCodeCancel)
				continue
			}
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.MetaHeadersFrame:
				o.got <- slices.Clone(f.Fields)
				_ = fr.WriteRSTStream(f.StreamID, http2.ErrCodeCancel)
			case *http2.PingFrame:
				_ = fr.WritePing(true, f.Data)
			}
		}
	}()
	tr := &http2.Transport{DisableCompression: true}
	if o.cc, err = tr.NewClientConn(near); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.cc.Close(); _ = far.Close(); <-done })
	return o
}

// fields are what the oracle sends of r; nil: it refuses to; none: what it sends is malformed.
func (o *oracle) fields(r *http.Request) []Field {
	_, err := o.cc.RoundTrip(r)
	select {
	case f := <-o.got:
		return f
	default:
	}
	if err == nil || !strings.HasPrefix(err.Error(), "http2: invalid") {
		panic(err)
	}
	return nil
}

// sorted is what counts of fields. Differences that are meant are left out.
func sorted(fields []Field) string {
	var s []string
	for _, f := range fields {
		switch f.Name {
		case "te", "trailer": // of TE only "trailers" may be said; the latter is of no use without one
			continue
		case "user-agent":
			if strings.HasPrefix(f.Value, "Go-http-client") {
				continue
			}
		case "cookie":
			if f.Value = strings.TrimLeft(f.Value, " "); f.Value == "" {
				continue
			}
		case ":authority":
			f.Value = withoutZone(f.Value)
		}
		s = append(s, f.Name+": "+f.Value)
	}
	slices.Sort(s)
	return strings.Join(s, "\n")
}

// What we send is what golang.org/x/net would send. What it refuses, we refuse.
func FuzzRequestFields(f *testing.F) {
	f.Add("GET", "api.test", "/a", "", false, "Accept", "a/b", int64(0))
	f.Add("POST", "bücher.test:1", "//a/b", "q=1", true, "Cookie", "a=b; c;; d ", int64(5))
	f.Add("", "[fe80::1%25x]", "*", "", true, "User-Agent", "k", int64(-1))
	f.Add("PUT", "a b", "a", "", false, "Connection", "Upgrade", int64(0))
	f.Add("PATCH", "", "//api.test/a", " ", false, "upgrade", "websocket", int64(0))
	f.Add("DELETE", "x", "/%zz/é", "\n", false, "X-ODD", "\x00", int64(7))
	o := newOracle(f)
	f.Fuzz(func(t *testing.T, method, host, opaque, query string, force bool, name, value string, length int64) {
		if method != "" && !httpguts.ValidHeaderFieldName(method) || method == "CONNECT" || name == ":protocol" {
			return // which are for net/http.Client to refuse
		}
		if name == "Connection" && strings.EqualFold(value, "close") {
			return // the oracle would have to be dialled again
		}
		r := &http.Request{Method: method, Host: host, Header: http.Header{name: {value}}, ContentLength: length,
			URL: &url.URL{Scheme: "https", Host: "url.test", Opaque: opaque, RawQuery: query, ForceQuery: force}}
		if length != 0 {
			r.Body = io.NopCloser(strings.NewReader(""))
			r.ContentLength = max(length, -1)
		}
		ours, err := requestFields(r)
		if err == nil {
			if why := check(*ours, request); why != "" {
				t.Errorf("malformed: %s", why)
			}
		}
		theirs := o.fields(r)
		switch {
		case err == nil && theirs == nil:
			t.Errorf("it was not refused: %v", *ours)
		case err == nil && sorted(*ours) != sorted(theirs):
			t.Errorf("got\n%s\nwant\n%s", sorted(*ours), sorted(theirs))
		case err != nil && !strings.HasPrefix(err.Error(), "http2: invalid"):
			t.Error(err)
		case err != nil && len(theirs) > 0:
			t.Errorf("it was refused: %v, and is\n%s", err, sorted(theirs))
		}
		putFields(ours)
	})
}
