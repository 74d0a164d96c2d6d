package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

type told struct {
	code  int
	again bool
}

func (told) Error() string        { return "inner words" }
func (told) Public() string       { return "prod:6443 is away; wait for it" }
func (t told) StatusCode() int    { return t.code }
func (t told) NotProcessed() bool { return t.again }

// A way out that explains itself is believed.
func TestExplainedFaults(t *testing.T) {
	p := &Proxy{server: "https://prod:6443"}
	for code, reason := range map[int]string{
		http.StatusServiceUnavailable: ReasonUnavailable, http.StatusGatewayTimeout: ReasonTimeout, http.StatusBadGateway: ReasonBadGateway,
	} {
		no := p.upstreamFault(fmt.Errorf("sending: %w", told{code: code}))
		if no.code != code || no.reason != reason || !strings.Contains(no.message, "wait for it") || strings.Contains(no.message, "inner") {
			t.Errorf("%d: %d %s %q", code, no.code, no.reason, no.message)
		}
	}
	if no := p.signFault(told{code: http.StatusBadRequest}); no.code != http.StatusBadRequest {
		t.Errorf("a request that cannot be signed is answered with %d", no.code)
	}
	if no := p.signFault(errors.New("no credentials")); no.code != http.StatusServiceUnavailable {
		t.Errorf("a signer without credentials is answered with %d", no.code)
	}
	if !unsent(told{again: true}) || unsent(told{}) || !unsent(errUnsent) {
		t.Error("wrong about what may be sent again")
	}
}
