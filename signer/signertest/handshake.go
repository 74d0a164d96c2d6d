package signertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"time"
)

// clientAuthentication: a server of crypto/tls takes the key for its client's, with each
// scheme that the key names and with all of them together.
func clientAuthentication(w world) error {
	return w.with(func(k Key) error {
		named := k.SupportedSignatureAlgorithms()
		certificates := k.CertificateChain()
		if len(certificates) == 0 {
			der, err := issue(k)
			if err != nil {
				return fmt.Errorf("issuing a certificate for the public key: %w", err)
			}
			certificates = [][]byte{der}
		}
		var errs []error
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			var fit []tls.SignatureScheme
			for _, s := range named {
				d, ok := describe(s)
				// TLS 1.3 signs with PSS alone (RFC 8446 section 4.2.3).
				if !ok || d.kind == pkcs1Kind && version == tls.VersionTLS13 {
					continue
				}
				fit = append(fit, s)
			}
			if len(fit) == 0 {
				continue // a token that does PKCS #1 v1.5 only has TLS 1.2
			}
			offers := [][]tls.SignatureScheme{fit}
			for _, s := range fit {
				offers = append(offers, []tls.SignatureScheme{s})
			}
			for _, offer := range offers {
				c := tls.Certificate{Certificate: certificates, PrivateKey: k, SupportedSignatureAlgorithms: offer}
				if err := authenticate(c, version, w.patience); err != nil {
					errs = append(errs, fmt.Errorf("%s with %v: %w", tls.VersionName(version), offer, err))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// authority signs the server's certificate, and those of keys that have none.
type authority struct {
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	server tls.Certificate
	pool   *x509.CertPool
}

const serverName = "server.test"

var ca = sync.OnceValues(func() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key, pool: x509.NewCertPool()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "signertest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.pool.AddCert(a.cert)
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err = a.issue(serverKey.Public(), x509.ExtKeyUsageServerAuth)
	a.server = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: serverKey}
	return a, err
})

func (a *authority) issue(public any, usage x509.ExtKeyUsage) ([]byte, error) {
	return x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, a.cert, public, a.key)
}

func issue(k Key) ([]byte, error) {
	a, err := ca()
	if err != nil {
		return nil, err
	}
	return a.issue(k.Public(), x509.ExtKeyUsageClientAuth)
}

// authenticate makes one connection to a server that wants proof of the key.
func authenticate(c tls.Certificate, version uint16, patience time.Duration) error {
	a, err := ca()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	deadline := time.Now().Add(patience)
	served := make(chan error, 1)
	go func() {
		served <- serveOne(l, deadline, &tls.Config{
			Certificates: []tls.Certificate{a.server}, ClientAuth: tls.RequireAnyClientCert, MinVersion: version, MaxVersion: version,
		}, c.Certificate[0])
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		_ = l.Close()
		<-served
		return err
	}
	_ = conn.SetDeadline(deadline)
	client := tls.Client(conn, &tls.Config{RootCAs: a.pool, ServerName: serverName, MinVersion: version, MaxVersion: version,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }})
	err = within(patience, func() error {
		// In TLS 1.3 the server's verdict comes after our side is done.
		_, err := io.ReadFull(client, make([]byte, 1))
		return err
	})
	_ = conn.Close()
	serr := <-served
	if err != nil {
		return err
	}
	return serr
}

// serveOne takes one client, whose certificate must be leaf.
func serveOne(l net.Listener, deadline time.Time, config *tls.Config, leaf []byte) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline)
	c := tls.Server(conn, config)
	if err := c.Handshake(); err != nil {
		return err
	}
	if peer := c.ConnectionState().PeerCertificates; len(peer) == 0 || string(peer[0].Raw) != string(leaf) {
		return errors.New("the server saw another certificate")
	}
	_, err = c.Write([]byte{1})
	return err
}
