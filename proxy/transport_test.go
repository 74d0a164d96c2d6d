package proxy

import (
	"net/http"
	"sync"
	"testing"

	"github.com/execproxy/execproxy/transport"
)

// pinned is the product's own way out, which is made for one server: here, for the one
// that the first request names.
type pinned struct {
	t    testing.TB
	once sync.Once
	*transport.Transport
}

func (p *pinned) RoundTrip(r *http.Request) (*http.Response, error) {
	p.once.Do(func() {
		pair := clientPair()
		tr, err := transport.New(transport.Options{Address: r.URL.Host, ServerName: "upstream.test", RootCAs: testCA().pool, Certificate: &pair})
		if err != nil {
			p.t.Error(err)
			return
		}
		p.t.Cleanup(func() { _ = tr.Close() })
		p.Transport = tr
	})
	return p.Transport.RoundTrip(r)
}
