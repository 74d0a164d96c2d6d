package apiserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// errNone says that a request brought nothing to authenticate with.
var errNone = errors.New("no client certificate and no signature")

// authenticator verifies the signature of a request whose body has the given SHA-256.
type authenticator interface {
	verify(r *http.Request, bodySHA256 string) (AccessKey, error)
}

type userKey struct{}

// userOf is who authenticate found.
func userOf(r *http.Request) UserInfo {
	u, _ := r.Context().Value(userKey{}).(UserInfo)
	return u
}

// authenticate lets nobody pass without a certificate or a signature that verifies.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.begin() {
			refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the demonstration is over")
			return
		}
		defer s.wg.Done()
		user, err := s.identify(w, r)
		if _, big := errors.AsType[*http.MaxBytesError](err); big {
			badBody(w, err)
			return
		}
		if err != nil {
			s.o.Logger.Debug("refused", "method", r.Method, "path", r.URL.Path, "err", err)
			refuse(w, http.StatusUnauthorized, "Unauthorized", err.Error())
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

// identify reads the certificate first, as kube-apiserver does, then the signature.
func (s *Server) identify(w http.ResponseWriter, r *http.Request) (UserInfo, error) {
	if certs := r.TLS.PeerCertificates; len(certs) > 0 {
		return s.byCertificate(r, certs)
	}
	if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
		return UserInfo{}, errNone
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return UserInfo{}, fmt.Errorf("reading the body: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	sum := sha256.Sum256(body)
	key, err := s.signed.verify(r, hex.EncodeToString(sum[:]))
	if err != nil {
		return UserInfo{}, err
	}
	return info(r, "sigv4", key.User, key.Groups), nil
}

func (s *Server) byCertificate(r *http.Request, certs []*x509.Certificate) (UserInfo, error) {
	o := x509.VerifyOptions{
		Roots:         s.clients.pool,
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range certs[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := certs[0].Verify(o); err != nil {
		if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok { // whose text guesses at length
			err = errors.New("signed by an unknown authority")
		}
		return UserInfo{}, fmt.Errorf("client certificate: %w", err)
	}
	return info(r, "x509", certs[0].Subject.CommonName, certs[0].Subject.Organization), nil
}

func info(r *http.Request, scheme, user string, groups []string) UserInfo {
	return UserInfo{
		Username: user,
		Groups:   append(groups[:len(groups):len(groups)], "system:authenticated"),
		Extra: map[string][]string{
			"demo.execproxy.io/authenticator": {scheme},
			"demo.execproxy.io/protocol":      {r.Proto},
		},
	}
}

// begin counts a request, unless the server is closing: Close waits for all that began.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Add(1)
	return true
}
