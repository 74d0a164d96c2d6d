package clientgo

import (
	"errors"
	"net/http"
)

// A transport is the shared way to a cluster.
type transport struct {
	e    *entry
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		if r.Context().Err() == nil && !errors.Is(err, ErrClosed) {
			t.e.r.o.Metrics.ExecProxyError()
		}
		return nil, t.e.plugin.explain(err)
	}
	return resp, nil
}

// CloseIdleConnections is what client-go and net/http ask for after a change of heart.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
