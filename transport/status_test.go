package transport

import (
	"context"
	"errors"
	"net/http"
	"testing"
)

func TestWhatClientsAreTold(t *testing.T) {
	for _, tt := range []struct {
		err   UpstreamError
		code  int
		again bool
	}{
		{UpstreamError{Kind: ErrUnreachable, unsent: true}, http.StatusServiceUnavailable, false},
		{UpstreamError{Kind: ErrNotProcessed, unsent: true}, http.StatusServiceUnavailable, true},
		{UpstreamError{Kind: ErrTimeout, unsent: true}, http.StatusGatewayTimeout, false},
		{UpstreamError{Kind: ErrUntrusted, unsent: true}, http.StatusBadGateway, false},
		{UpstreamError{Kind: ErrKey, Err: errToken, unsent: true}, http.StatusServiceUnavailable, false},
		{UpstreamError{Kind: ErrKey, Err: context.DeadlineExceeded, unsent: true}, http.StatusServiceUnavailable, false},
		{UpstreamError{Kind: ErrConnectionLost, Err: errors.New("eof")}, http.StatusBadGateway, false},
	} {
		if got := tt.err.StatusCode(); got != tt.code {
			t.Errorf("%v: status %d, want %d", tt.err.Kind, got, tt.code)
		}
		if got := tt.err.NotProcessed(); got != tt.again {
			t.Errorf("%v: not processed %t, want %t", tt.err.Kind, got, tt.again)
		}
	}
}
