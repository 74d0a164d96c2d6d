package demo

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"time"
)

// holdsNone fails if one of the secrets is in text, plain, base64 or broken over lines; it names the secret, and never
// shows it.
func holdsNone(text []byte, secrets map[string][]byte) error {
	text = flat(text)
	for name, secret := range secrets {
		forms := [][]byte{secret, []byte(base64.StdEncoding.EncodeToString(secret))}
		if b, _ := pem.Decode(secret); b != nil {
			forms = append(forms, []byte(base64.StdEncoding.EncodeToString(b.Bytes)))
		}
		for _, f := range forms {
			if bytes.Contains(text, flat(f)) {
				return fmt.Errorf("the document holds the upstream's %s", name)
			}
		}
	}
	return nil
}

// flat takes out line breaks, JSON's escaped ones too.
func flat(b []byte) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte(`\n`), nil), []byte("\n"), nil)
}

// pair is the session's own.
func (s *session) pair() (tls.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(s.cred.Status.ClientCertificateData), []byte(s.cred.Status.ClientKeyData))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading the session pair: %w", err)
	}
	return pair, nil
}

// dial connects to the proxy's socket over HTTP/1.1, with the session pair or without.
func (s *session) dial(ctx context.Context, withPair bool) (net.Conn, error) {
	config, err := s.client.TLSConfig(ctx)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	if !withPair {
		// Without the session cache, too: a ticket of the session stands for the pair that it was opened with.
		config.Certificates, config.GetClientCertificate, config.ClientSessionCache = nil, nil, nil
	}
	raw, err := s.client.DialContext(ctx, "tcp", s.d.server.Address())
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS with the proxy: %w", err)
	}
	return conn, nil
}

// directly is a way to the API server past any proxy, those of the environment included.
func directly(config *tls.Config) *http.Transport {
	return &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 5 * time.Second}
}
