package token

import (
	"context"
	"net/http"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// Signer sends the token of a cache with each request. It implements
// [signer.RequestSigner] and [signer.ResponseObserver]. It does not look at the body.
type Signer struct{ cache *Cache }

var (
	_ signer.RequestSigner    = (*Signer)(nil)
	_ signer.ResponseObserver = (*Signer)(nil)
)

// NewSigner returns a Signer.
func NewSigner(c *Cache) *Signer { return &Signer{c} }

// SignRequest returns Authorization, or nothing where the credential is a certificate. It
// fails as [Cache.Credential] does.
func (s *Signer) SignRequest(ctx context.Context, _ *signer.Request) (http.Header, error) {
	k, err := s.cache.Credential(ctx)
	if err != nil {
		return nil, err
	}
	h := http.Header{}
	if k.Token != "" {
		h.Set("Authorization", "Bearer "+k.Token)
	}
	return h, nil
}

// ObserveResponse learns from a 401 that the token is taken no longer. A 403 says who we
// are, so that the token was taken. Another try is not worth it with a certificate, which
// belongs to a connection.
func (s *Signer) ObserveResponse(status int, _ http.Header, sentAt time.Time) (again bool) {
	if status != http.StatusUnauthorized {
		return false
	}
	k, ok := s.cache.kept.Look()
	return s.cache.Refused(sentAt) && ok && k.Value.Token != ""
}
