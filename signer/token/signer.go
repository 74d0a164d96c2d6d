package token

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/signer"
)

// Signer sends the token of a cache with each request. It implements
// [signer.FieldSigner] and [signer.ResponseObserver]. It does not look at the body.
type Signer struct {
	cache *Cache
	last  atomic.Pointer[bearer]
}

// bearer is a credential and the field that sends it.
type bearer struct {
	of    *Credential
	value string // "" for a certificate
}

var (
	_ signer.FieldSigner      = (*Signer)(nil)
	_ signer.ResponseObserver = (*Signer)(nil)
)

// NewSigner returns a Signer.
func NewSigner(c *Cache) *Signer { return &Signer{cache: c} }

// SignRequest returns Authorization, or nothing where the credential is a certificate. It
// fails as [Cache.Credential] does.
func (s *Signer) SignRequest(ctx context.Context, _ *signer.Request) (http.Header, error) {
	k, err := s.cache.Credential(ctx)
	if err != nil {
		return nil, err
	}
	h := http.Header{}
	if b := s.bearer(k); b != "" {
		h["Authorization"] = []string{b}
	}
	return h, nil
}

// SignFields is SignRequest for fields, see [signer.FieldSigner]. ok is false where
// [Cache.Credential] would get another credential, or wait for one.
func (s *Signer) SignFields(_ *signer.Request, _ []signer.Field, out *signer.Fields) (ok bool, err error) {
	k, ok := s.cache.kept.Ready(s.cache.kept.Now())
	if !ok {
		return false, nil
	}
	if b := s.bearer(k); b != "" {
		out.Add("authorization", b)
	}
	return true, nil
}

// bearer is the value of Authorization for a credential, made once; "" for a certificate.
func (s *Signer) bearer(k *Credential) string {
	b := s.last.Load()
	if b == nil || b.of != k {
		b = &bearer{of: k}
		if k.Token != "" {
			b.value = "Bearer " + k.Token
		}
		s.last.Store(b)
	}
	return b.value
}

// String tells what it is, and no secret.
func (s *Signer) String() string { return "bearer token" }

// GoString is String.
func (s *Signer) GoString() string { return s.String() }

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
