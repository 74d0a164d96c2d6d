package transport

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// Identity is who the client is and whom it trusts. Rotate replaces both.
type Identity struct {
	// Certificate is the client certificate, or nil for none. Its PrivateKey
	// must be a crypto.Signer.
	Certificate *tls.Certificate
	// RootCAs verify the server. nil means the system's roots.
	RootCAs *x509.CertPool
}

// notAfter returns when the certificate ends; zero where there is none.
func (id *Identity) notAfter() (time.Time, error) {
	c := id.Certificate
	if c == nil {
		return time.Time{}, nil
	}
	if _, ok := c.PrivateKey.(crypto.Signer); !ok {
		return time.Time{}, fmt.Errorf("client certificate: private key of type %T cannot sign; give a crypto.Signer", c.PrivateKey)
	}
	if len(c.Certificate) == 0 {
		return time.Time{}, errors.New("client certificate: the chain is empty; give the certificate of the key")
	}
	leaf := c.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return time.Time{}, fmt.Errorf("client certificate: parsing the first of the chain: %w", err)
		}
	}
	return leaf.NotAfter, nil
}

// countingSigner counts the signatures of one handshake and keeps the error
// that crypto/tls would flatten into text.
type countingSigner struct {
	crypto.Signer
	count *atomic.Uint64
	used  bool
	err   error
}

func (s *countingSigner) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	s.count.Add(1)
	s.used = true
	sig, err := s.Signer.Sign(rand, digest, opts)
	s.err = err
	return sig, err
}

// countingMessageSigner keeps crypto.MessageSigner visible where the key has it.
type countingMessageSigner struct{ *countingSigner }

func (s countingMessageSigner) SignMessage(rand io.Reader, msg []byte, opts crypto.SignerOpts) ([]byte, error) {
	s.count.Add(1)
	s.used = true
	sig, err := s.Signer.(crypto.MessageSigner).SignMessage(rand, msg, opts)
	s.err = err
	return sig, err
}

// certificate returns a copy of c whose key reports to s.
func (s *countingSigner) certificate(c *tls.Certificate) *tls.Certificate {
	cp := *c
	s.Signer = c.PrivateKey.(crypto.Signer)
	cp.PrivateKey = s
	if _, ok := s.Signer.(crypto.MessageSigner); ok {
		cp.PrivateKey = countingMessageSigner{s}
	}
	return &cp
}
