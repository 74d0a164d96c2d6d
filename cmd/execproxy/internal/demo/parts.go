package demo

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
)

// The identities of the demonstration.
var (
	jane  = who{user: "jane", groups: []string{"developers"}, by: "x509"}
	robot = who{user: "arn:aws:iam::123456789012:role/deployer", groups: []string{"deployers"}, by: "sigv4"}
)

// identity is one way to be somebody upstream.
type identity struct {
	name      string // of its files and its pod
	who       who
	extension map[string]any    // what the kubeconfig tells the plugin
	env       []string          // what the plugin needs in its environment
	secrets   map[string][]byte // what must not reach the client
}

// certificate is the exchange with a key and a client certificate.
func (d *demo) certificate(ctx context.Context) error {
	d.begin("A client certificate (mTLS)")
	id := identity{name: "mtls", who: jane}
	var pair tls.Certificate
	if err := d.do(ctx, "key", func(context.Context) (string, error) {
		keyPEM, certPEM, err := d.server.Issue(jane.user, jane.groups...)
		if err != nil {
			return "", err
		}
		if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
			return "", err
		}
		key, err := d.place.write("jane.key", keyPEM)
		if err != nil {
			return "", err
		}
		cert, err := d.place.write("jane.crt", certPEM)
		if err != nil {
			return "", err
		}
		id.extension = map[string]any{"auth": "mtls", "key": key, "cert": cert}
		id.secrets = map[string][]byte{"key": keyPEM, "certificate": certPEM}
		return "key and certificate of jane (CN), developers (O) in two files, mode 0600", nil
	}); err != nil {
		return err
	}
	return d.exchange(ctx, id, step{"forged", func(ctx context.Context) (string, error) {
		return d.forged(ctx, pair)
	}})
}

// forged presents a certificate that says the same as jane's, but that another authority has signed.
func (d *demo) forged(ctx context.Context, real tls.Certificate) (string, error) {
	rt := directly(d.server.ClientConfig(real))
	defer rt.CloseIdleConnections()
	if _, err := (caller{d.server.URL(), rt}).whoami(ctx, jane); err != nil {
		return "", fmt.Errorf("the true certificate: %w", err)
	}
	other, err := apiserver.Start(apiserver.Options{})
	if err != nil {
		return "", err
	}
	defer func() { _ = other.Close() }()
	keyPEM, certPEM, err := other.Issue(jane.user, jane.groups...)
	if err != nil {
		return "", err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return "", err
	}
	frt := directly(d.server.ClientConfig(pair))
	defer frt.CloseIdleConnections()
	message, err := caller{d.server.URL(), frt}.refused(ctx, podsPath)
	if err != nil {
		return "", err
	}
	return "jane by another authority, straight to the API server: " + message, nil
}

// step is a named part of an exchange.
type step struct {
	name string
	run  func(context.Context) (string, error)
}

// exchange is what a client does, from the lock to the daemon's end; wrong is what must fail on the way.
func (d *demo) exchange(ctx context.Context, id identity, wrong step) error {
	var s *session
	if err := d.do(ctx, "lock", func(context.Context) (seen string, err error) {
		s, err = d.open(id)
		return "taken on a file of our own: who holds it keeps the proxy alive", err
	}); err != nil {
		return err
	}
	c := s.caller()
	var w *watch
	defer func() {
		if w != nil {
			w.close()
		}
	}()
	for _, st := range []step{
		{"plugin", s.start},
		{"document", func(context.Context) (string, error) { return s.document(id.secrets) }},
		{"alone", s.alone},
		{"whoami", func(ctx context.Context) (string, error) { return c.whoami(ctx, id.who) }},
		{"get", func(ctx context.Context) (string, error) { return c.get(ctx) }},
		{"list", func(ctx context.Context) (string, error) { return c.list(ctx) }},
		{"watch", func(step context.Context) (seen string, err error) {
			w, err = c.watch(step, ctx)
			return "open; its first event came at once: ADDED " + seeded, err
		}},
		{"create", func(ctx context.Context) (string, error) { return c.create(ctx, w, "job-"+id.name) }},
		{"upgrade", s.upgrade},
		wrong,
		{"stranger", s.stranger},
		{"status", s.status},
		{"end", s.end},
	} {
		if err := d.do(ctx, st.name, st.run); err != nil {
			return err
		}
	}
	return nil
}
