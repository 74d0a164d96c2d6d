package socket

import (
	"crypto/tls"
	"crypto/x509"
	"sync"
	"sync/atomic"
	"time"
)

// CheckNames reports whether this authority can issue a certificate for these names that a client will accept: DNS
// names and IP addresses, for the loopback CA only loopback ones. [Authority.ServerConfig] cannot tell before the
// first handshake.
func (a *Authority) CheckNames(hosts []string) error {
	_, err := a.names(hosts)
	return err
}

func (a *Authority) names(hosts []string) (names, error) {
	if a.loopback && len(hosts) == 0 {
		return loopbackNames(), nil
	}
	n, err := parseNames(hosts)
	if err == nil && a.loopback {
		err = n.loopbackOnly()
	}
	return n, err
}

// ServerConfig is the TLS side of a listener that stands for names: the hosts under which clients verify it, that is,
// the API server's name or address and its tls-server-name. The loopback CA takes no names for localhost, 127.0.0.1
// and ::1.
//
// The certificate lives for two days and is made anew after one, during a handshake, so that nothing has to run in
// between; connections that are open keep theirs. TLS 1.2 and later, HTTP/2 and HTTP/1.1.
//
// Clients are asked for a pair of the authority clients, whose subject is the hint that they get. None, or one of
// another authority, does not fail the handshake: the handler asks [Authority.Verified] and says in its answer what is
// missing. A client-go that still has the pair of a proxy that ended runs its plugin again on a 401, and would go on
// failing on a TLS alert. If clients is nil, nobody is asked.
func (a *Authority) ServerConfig(hosts []string, clients *Authority) *tls.Config {
	l := &leaves{a: a}
	l.names, l.err = a.names(hosts)
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return l.get() },
		Time:           a.opts.now,
		// Small records at a connection's start help a browser that paints what it has got. A client on this machine
		// only pays a system call for each.
		DynamicRecordSizingDisabled: true,
	}
	if clients != nil {
		c.ClientAuth = tls.RequestClientCert
		c.ClientCAs = x509.NewCertPool()
		c.ClientCAs.AddCert(clients.cert)
	}
	return c
}

// Verified reports whether the client of a connection has shown a pair that this very authority made and that has not
// expired. The handshake has proved that it holds the key; on resumed sessions it is the one of the first. Chains are
// not built: what was issued is known to the byte. It waits for nobody.
func (a *Authority) Verified(s *tls.ConnectionState) bool {
	if s == nil || len(s.PeerCertificates) == 0 {
		return false
	}
	opens := a.opens.Load()
	if opens == nil {
		return false
	}
	c := s.PeerCertificates[0]
	_, ours := (*opens)[string(c.Raw)]
	now := a.opts.now()
	return ours && !now.Before(c.NotBefore) && !now.After(c.NotAfter)
}

// leaves hands out the server certificate, and makes the next one in time.
type leaves struct {
	a     *Authority
	names names
	err   error // of names

	current atomic.Pointer[leaf]
	mu      sync.Mutex // held to make the next
}

type leaf struct {
	cert  tls.Certificate
	valid window
}

func (l *leaves) get() (*tls.Certificate, error) {
	now := l.a.opts.now()
	if c := l.current.Load(); c != nil && c.valid.holds(now) {
		return &c.cert, nil
	}
	if l.err != nil {
		return nil, l.err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.current.Load(); c != nil && c.valid.holds(now) {
		return &c.cert, nil
	}
	cert, key, err := l.a.issue(now, &x509.Certificate{
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(leafLife),
		DNSNames:    l.names.dns,
		IPAddresses: l.names.ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}
	renew := now.Add(leafRenew)
	if cert.NotAfter.Before(renew) {
		renew = cert.NotAfter
	}
	next := &leaf{
		cert:  tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert},
		valid: window{cert.NotBefore, renew},
	}
	l.current.Store(next)
	l.a.log.Debug("server certificate issued", "notAfter", cert.NotAfter.Format(time.RFC3339))
	return &next.cert, nil
}
