package clientauthentication

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Encode returns what a plugin prints: one document on one line, of the same version
// as c, with nothing but the status in it. The expiration is given in whole seconds.
//
// It refuses, with an error that says which field is why, an answer that a client
// could not use or should not get: an expiration that is past, one half of a pair, a
// token beside a proxyConfig, a proxyConfig without CA or with a URL that is not a
// Unix socket's, no credential at all.
func (c *ExecCredential) Encode() ([]byte, error) { return c.encode(time.Now()) }

func (c *ExecCredential) encode(now time.Time) ([]byte, error) {
	fail := func(err error) ([]byte, error) { return nil, fmt.Errorf("encoding %s: %w", Kind, err) }
	if err := checkVersion(c.APIVersion); err != nil {
		return fail(err)
	}
	if c.Kind != "" && c.Kind != Kind {
		return fail(errors.New("kind is not " + Kind))
	}
	if c.Status == nil {
		return fail(errors.New("it has no status"))
	}
	status := *c.Status
	if err := status.check(); err != nil {
		return fail(err)
	}
	if at := &status.ExpirationTimestamp; !at.IsZero() {
		if *at = at.UTC().Truncate(time.Second); !at.After(now) {
			return fail(fmt.Errorf("expirationTimestamp %s is past: the client's first request would fail", at.Format(time.RFC3339)))
		}
	}
	return marshal(&ExecCredential{APIVersion: c.APIVersion, Kind: Kind, Status: &status})
}

// EncodeInfo returns what a client sets KUBERNETES_EXEC_INFO to: version, kind and
// Spec of c, without a newline.
func (c *ExecCredential) EncodeInfo() ([]byte, error) {
	err := checkVersion(c.APIVersion)
	if cluster := c.Spec.Cluster; err == nil && cluster != nil {
		switch {
		case cluster.Server == "":
			err = errors.New("spec.cluster has no server")
		case cluster.Config != nil && !json.Valid(cluster.Config):
			err = errors.New("spec.cluster.config is not JSON")
		}
	}
	var data []byte
	if err == nil {
		data, err = marshal(&struct { // spec is always there, as client-go has it
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Spec       Spec   `json:"spec"`
		}{c.APIVersion, Kind, c.Spec})
	}
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", InfoVariable, err)
	}
	return bytes.TrimSuffix(data, []byte("\n")), nil
}

// marshal leaves <, > and & as they are: the document is not HTML, and a socket's
// path may be looked for in it.
func marshal(c any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		return nil, broken(err)
	}
	return b.Bytes(), nil
}

// check is what an answer must be, coming or going.
func (s *Status) check() error {
	pair := s.ClientCertificateData != ""
	switch {
	case pair != (s.ClientKeyData != ""):
		return errors.New("clientCertificateData and clientKeyData must be given together")
	case s.ProxyConfig != nil && s.Token != "":
		return errors.New("a token beside proxyConfig: a client that has a proxy must not get what the API server accepts")
	case s.ProxyConfig != nil:
		if _, err := s.ProxyConfig.SocketPath(); err != nil {
			return err
		}
		if len(s.ProxyConfig.CertificateAuthorityData) == 0 {
			return errors.New("proxyConfig has no certificate-authority-data: the client could not know the proxy")
		}
	case s.Token == "" && !pair:
		return errors.New("it holds no credential: neither token nor pair nor proxyConfig")
	}
	return nil
}
