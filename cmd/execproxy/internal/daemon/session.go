package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/proxy/socket"
)

// Bounds of a document's expiry. It is all that makes a stock client-go run the
// plugin again, a past one fails its first request, and a proxy that ended idle
// before it would leave the client with nobody to talk to.
const (
	mostExpiry  = 4 * time.Minute
	leastExpiry = 65 * time.Second // a minute when it is read
)

// A session is the two authorities of one proxy: its own, which makes the client
// pair and the Unix socket's certificate, and this user's stable one for loopback
// listeners. Its own ends with the process, unless the proxy is one whose clients
// read their pair once and outlive it; see keptSession.
type session struct {
	own    *socket.Authority
	places Places

	mu       sync.Mutex
	loopback *socket.Authority // opened when first needed
}

func newSession(p Places) (*session, error) {
	own, err := socket.NewAuthority(socket.AuthorityOptions{})
	if err != nil {
		return nil, err
	}
	return &session{own: own, places: p}, nil
}

// openSession is the session of a proxy that is started again and again, by a
// service manager say, among clients that are not.
func (d *Daemon) openSession() (*session, error) {
	if d.opt.Life != lifeServe {
		return newSession(d.opt.Places)
	}
	s, err := keptSession(d.opt.Places, SessionID(d.config, d.opt.Environ), d.log)
	if err != nil && d.config.KubeconfigOut == "" {
		// Its clients run a plugin, which asks again. What they lose is a request.
		d.Warn(fmt.Sprintf("clients must ask for a new pair when this proxy is started again: %v", err))
		return newSession(d.opt.Places)
	}
	return s, err
}

// keptSession is the one that the proxy of this id had before. Clients of a
// kubeconfig have read its pair once: a scheduler that had to be started again
// with its sidecar would lose its lease, and a kubelet its node.
func keptSession(p Places, id string, log *slog.Logger) (*session, error) {
	dir, err := socket.OpenDir(p.Sessions())
	if err != nil {
		return nil, err
	}
	own, err := socket.OpenSession(dir, id, socket.AuthorityOptions{Logger: log})
	if err != nil {
		return nil, err
	}
	return &session{own: own, places: p}, nil
}

// unixConfig is for names under which clients of the Unix socket verify it.
func (s *session) unixConfig(names []string) *tls.Config {
	return s.own.ServerConfig(names, s.own)
}

func (s *session) loopbackAuthority() (*socket.Authority, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loopback == nil {
		a, err := openLoopbackAuthority(s.places)
		if err != nil {
			return nil, err
		}
		s.loopback = a
	}
	return s.loopback, nil
}

func (s *session) loopbackConfig() (*tls.Config, error) {
	a, err := s.loopbackAuthority()
	if err != nil {
		return nil, err
	}
	return a.ServerConfig(nil, s.own), nil
}

// trusted fails where a client would not know the loopback listener by what it
// pins.
func (s *session) trusted(pinned []byte) error {
	if len(pinned) == 0 {
		return nil
	}
	a, err := s.loopbackAuthority()
	if err != nil {
		return err
	}
	own, _ := pem.Decode(a.CertificatePEM())
	for rest := pinned; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return fmt.Errorf("the kubeconfig's certificate-authority-data is not this user's loopback CA in %s: it is another user's kubeconfig, or the CA was made anew; print one with `execproxy kubeconfig`", s.places.Authority())
		}
		if bytes.Equal(block.Bytes, own.Bytes) {
			return nil
		}
	}
}

// OurAuthority reports whether somebody who pins these certificates trusts this user's
// loopback listeners. It makes no authority where there is none.
func OurAuthority(p Places, pinned []byte) bool {
	if _, err := os.Stat(p.Authority()); err != nil || len(pinned) == 0 {
		return false
	}
	return (&session{places: p}).trusted(pinned) == nil
}

func openLoopbackAuthority(p Places) (*socket.Authority, error) {
	dir, err := p.open(p.Authority())
	if err != nil {
		return nil, err
	}
	return socket.OpenAuthority(dir, socket.AuthorityOptions{})
}

// LoopbackAuthority is the PEM certificate of this user's loopback authority,
// which is made when there is none.
func LoopbackAuthority(p Places) ([]byte, error) {
	a, err := openLoopbackAuthority(p)
	if err != nil {
		return nil, err
	}
	return a.CertificatePEM(), nil
}

// serverNames is what a client of the Unix socket may take the proxy for: the
// API server under the name that the client verifies, or a loopback address
// where its kubeconfig names one.
func serverNames(c *config.Config) []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	add := func(name string) {
		for _, n := range names {
			if strings.EqualFold(n, name) {
				return
			}
		}
		if name != "" {
			names = append(names, name)
		}
	}
	if u, err := url.Parse(c.Server); err == nil {
		add(u.Hostname())
	}
	add(c.TLSServerName)
	return names
}

// document is what a plugin prints: the pair of this session and, for a client
// that takes it, the socket. Asked again, it is the same to the byte.
func (d *Daemon) document(ctx context.Context, ask Ask) (*clientauthentication.Status, error) {
	switch direct := d.opt.Life == lifeDirect; {
	case ask.Direct != direct && direct:
		return nil, &refusal{Message: "this daemon keeps a credential and is no proxy; name the socket of one"}
	case ask.Direct != direct:
		return nil, &refusal{Message: "this proxy does not hand out what the API server accepts; leave --direct out, or --socket"}
	case direct:
		return d.credential(ctx, ask)
	}
	if ask.Server != "" && !config.SameServer(ask.Server, d.config.Server) {
		return nil, &refusal{Message: "this proxy stands in front of " + d.config.Server + ", not of " + ask.Server + "; name its socket only for that cluster"}
	}
	if !d.life.touch() {
		return nil, errEnding
	}
	if err := d.fresh(ctx, ask); err != nil {
		return nil, err
	}
	s := &clientauthentication.Status{ExpirationTimestamp: time.Now().Add(d.expiry()).UTC().Truncate(time.Second)}
	switch {
	case ask.Loopback != "":
		// The client would say no more than that it does not know the authority. By
		// sudo or su, it may be another user's kubeconfig, who has the port, too.
		if err := d.session.trusted(ask.Authority); err != nil {
			return nil, &refusal{Message: err.Error()}
		}
		if err := d.loopbackFor(ask.Loopback); err != nil {
			return nil, err
		}
	case len(d.opt.Sockets) == 0:
		return nil, &refusal{Message: "this proxy has no Unix socket; start it with --listen unix:///PATH"}
	default:
		url, err := clientauthentication.SocketURL(d.opt.Sockets[0])
		if err != nil {
			return nil, err
		}
		s.ProxyConfig = &clientauthentication.ProxyConfig{URL: url, CertificateAuthorityData: d.session.own.CertificatePEM()}
	}
	pair, err := d.session.own.ClientPair()
	if err != nil {
		return nil, err
	}
	s.ClientCertificateData, s.ClientKeyData = string(pair.CertificatePEM), string(pair.KeyPEM)
	// Last: a lock is registered for a client that gets its answer. A proxy that
	// was there before its clients, a sidecar, also is after them.
	if ask.LockFile != "" && !d.opt.Fixed {
		if err := d.life.register(ask.LockFile); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (d *Daemon) expiry() time.Duration {
	e := mostExpiry
	if d.opt.Idle > 0 {
		e = min(e, d.opt.Idle*4/5)
	}
	return max(e, leastExpiry)
}

// loopbackFor serves the address that a client is going to call.
func (d *Daemon) loopbackFor(addr string) error {
	if d.opt.Fixed {
		for _, u := range d.urls() {
			if u == "https://"+addr {
				return nil
			}
		}
		return &refusal{Message: "this proxy does not listen at https://" + addr + " (it does at " + strings.Join(d.urls(), ", ") + "); correct the kubeconfig's server or the proxy's --listen"}
	}
	if _, port, _ := net.SplitHostPort(addr); port == "0" {
		return &refusal{Message: "a client cannot call port 0; name the port in the kubeconfig's server"}
	}
	_, err := d.listenLoopback(addr)
	if err = d.whoListens(addr, err); errors.Is(err, socket.ErrPortTaken) {
		return fmt.Errorf("%w; it may be another user's: `execproxy kubeconfig` prints a kubeconfig with a free one", err)
	}
	return err
}

// whoListens is the error of a port that is taken, which it mostly is by ourselves, as
// somebody else.
func (d *Daemon) whoListens(addr string, err error) error {
	if !errors.Is(err, socket.ErrPortTaken) {
		return err
	}
	for _, s := range Running(context.Background(), d.opt.Places) {
		if s.ID != d.opt.ID && slices.Contains(s.Listeners, "https://"+addr) {
			return fmt.Errorf("proxy %s with another identity or configuration serves at %s (%s, auth %s); end it with `execproxy stop %s`, or name another address with --listen", s.ID, addr, s.Server, s.Auth, s.ID)
		}
	}
	return err
}

// LoopbackSession is what opens the loopback listeners: their authority's
// certificate and the session's pair, in PEM.
func (d *Daemon) LoopbackSession() (ca, cert, key []byte, err error) {
	a, err := d.session.loopbackAuthority()
	if err != nil {
		return nil, nil, nil, err
	}
	pair, err := d.session.own.ClientPair()
	if err != nil {
		return nil, nil, nil, err
	}
	return a.CertificatePEM(), pair.CertificatePEM, pair.KeyPEM, nil
}
