package daemon

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/enroll"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/keyhome"
	"github.com/execproxy/execproxy/transport"
)

// RenewalStatus is what `execproxy status` tells of the renewal to come.
type RenewalStatus struct {
	Next      *time.Time `json:"next,omitempty"`      // of the renewal, or of another try
	Request   string     `json:"request,omitempty"`   // the CertificateSigningRequest that is waited for
	Waits     string     `json:"waits,omitempty"`     // for what
	Since     *time.Time `json:"since,omitempty"`     // it waits
	Approve   string     `json:"approve,omitempty"`   // what an administrator runs
	LastError string     `json:"lastError,omitempty"` // of the last try, with the cure
	Renewed   uint64     `json:"renewed"`
}

// renew has the certificate renewed ahead of its end, over the proxy's own way to
// the API server, as long as the proxy lives.
func (f *front) renew() error {
	c, d := f.config, f.d
	if c.Auth != config.AuthMTLS || c.Key == "" || c.Renew == config.RenewOff {
		return nil
	}
	server, err := config.ServerURL(c.Server)
	if err != nil {
		return &config.FieldError{Field: "server", Err: err}
	}
	r := &renewal{
		config: c, homes: f.id.homes, current: f.id.current, changing: &f.id.changing, log: d.log,
		use: func(k *keyhome.Key, stored error) error {
			if f.id.unstored = stored != nil; stored != nil {
				d.Warn("the renewed certificate is in use and could not be stored, the next proxy will not find it: " + stored.Error())
			}
			f.id.setKey(k)
			return f.rotate()
		},
		tell: func(ctx context.Context) { Reload(ctx, d.opt.Places, d.opt.ID) },
	}
	f.renewer = &enroll.Renewer{
		Client:  &enroll.Client{Server: server, Transport: f.upstream},
		Current: func() *x509.Certificate { return f.id.current().Leaf() },
		Key:     r.key, Store: r.store,
		SignerName: c.SignerName, RenewBefore: c.RenewBefore, Logger: d.log,
	}
	d.Go(func() {
		if err := f.renewer.Run(f.work); err != nil && f.work.Err() == nil {
			d.log.Error("the certificate is no longer renewed", "error", err)
		}
	})
	return nil
}

// renewalStatus is nil where nothing is renewed.
func (f *front) renewalStatus() *RenewalStatus {
	if f.renewer == nil {
		return nil
	}
	s := f.renewer.State()
	out := &RenewalStatus{LastError: s.LastError, Renewed: s.Renewed, Next: moment(s.Next)}
	if s.Pending != "" {
		out.Request, out.Waits, out.Since = s.Pending, string(s.Progress.State), moment(s.Since)
		if s.Progress.State == enroll.Pending {
			out.Approve = enroll.ApproveCommand(s.Pending)
		}
	}
	return out
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Second)
	return &t
}

// A renewal brings a key's next certificate home, and the next key where a new one
// is wanted. It is of one goroutine.
type renewal struct {
	config  *config.Config
	homes   keyhome.Options
	current func() *keyhome.Key
	// use brings the key into use; stored is why it could not be stored. It is called
	// with changing held, and fails where nobody takes the key.
	use      func(k *keyhome.Key, stored error) error
	tell     func(context.Context) // tells this user's other proxies
	changing *sync.Mutex
	log      *slog.Logger

	next *keyhome.Key // that the certificate is for; nil: the current one
}

// key is the one that the next certificate is for.
func (r *renewal) key(ctx context.Context) (crypto.Signer, func(), error) {
	k := r.current()
	if r.config.Renew != config.RenewNewKey {
		return k, nil, nil
	}
	next, err := k.Next(ctx, r.config, r.homes)
	if err != nil {
		return nil, nil, fmt.Errorf("making the next key: %w", err)
	}
	r.next = next
	return next, func() {
		if r.next != nil { // not brought into use
			_ = r.next.Close()
			r.next = nil
		}
	}, nil
}

// store keeps the certificate, DER, in the key's home, and brings it into use.
func (r *renewal) store(ctx context.Context, der [][]byte) error {
	chain, err := x509.ParseCertificates(bytes.Join(der, nil))
	if err != nil {
		return err
	}
	return r.keep(ctx, chain)
}

func (r *renewal) keep(ctx context.Context, chain []*x509.Certificate) error {
	old, err := r.bring(ctx, chain)
	if err != nil {
		return err
	}
	// Whoever else opened the key takes over the new certificate now.
	r.tell(ctx)
	if old != nil {
		// Connections of the old generation have signed already.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := errors.Join(old.Forget(ctx), old.Close()); err != nil {
			r.log.Warn("the key that was replaced is still there", "key", old.Location(), "error", err)
		}
	}
	return nil
}

// bring stores the chain and brings it into use. It returns the key that has no use
// any more, nil where there is none.
func (r *renewal) bring(ctx context.Context, chain []*x509.Certificate) (*keyhome.Key, error) {
	r.changing.Lock()
	defer r.changing.Unlock()
	old := r.current()
	if r.next == nil {
		k, err := old.Store(ctx, chain)
		if k == nil {
			return nil, err
		}
		_ = r.use(k, err) // it is the same key
		return nil, nil
	}
	k, err := old.Replace(ctx, r.next, chain)
	if k == nil {
		return nil, err
	}
	r.next = nil
	if used := r.use(k, err); used != nil || err != nil {
		return nil, nil // the old one may be needed again
	}
	return old, nil
}

// A Renewal renews a certificate once, outside of a proxy.
type Renewal struct {
	renewal
	key      *keyhome.Key
	way      *transport.Transport
	client   *enroll.Client
	unstored error // why the certificate is not where it belongs
}

// NewRenewal opens the key and the way to the API server that its present
// certificate authenticates.
func NewRenewal(ctx context.Context, c *config.Config, homes keyhome.Options, places Places, environ []string) (*Renewal, error) {
	log := slog.New(slog.DiscardHandler)
	server, err := config.ServerURL(c.Server)
	if err != nil {
		return nil, &config.FieldError{Field: "server", Err: err}
	}
	k, err := keyhome.Open(ctx, c, homes)
	if err != nil {
		return nil, err
	}
	o, err := wayOut(c, environ, k.TLSCertificate(k), log)
	if err != nil {
		_ = k.Close()
		return nil, err
	}
	way, err := transport.New(o)
	if err != nil {
		_ = k.Close()
		return nil, err
	}
	r := &Renewal{key: k, way: way, client: &enroll.Client{Server: server, Transport: way}}
	r.renewal = renewal{
		config: c, homes: homes, current: func() *keyhome.Key { return r.key }, changing: &sync.Mutex{}, log: log,
		use: func(k *keyhome.Key, stored error) error {
			if r.unstored = stored; stored == nil {
				r.key = k
			}
			return stored
		},
		tell: func(ctx context.Context) { Reload(ctx, places, "") },
	}
	return r, nil
}

// Renew orders the next certificate, has get wait for it, and stores it.
func (r *Renewal) Renew(ctx context.Context, get func(*enroll.Client, enroll.Order) ([]*x509.Certificate, error)) (*keyhome.Key, error) {
	if err := r.key.CheckStore(); err != nil { // before an administrator approves
		return nil, err
	}
	key, done, err := r.renewal.key(ctx)
	if err != nil {
		return nil, err
	}
	if done != nil {
		defer done()
	}
	order, err := enroll.Renewal(key, r.key.Leaf(), r.config.SignerName)
	if err != nil {
		return nil, err
	}
	chain, err := get(r.client, order)
	if err != nil {
		return nil, err
	}
	if err := r.keep(ctx, chain); err != nil {
		return nil, err
	}
	if r.unstored != nil {
		return nil, fmt.Errorf("the certificate was issued and is not stored: %w", r.unstored)
	}
	return r.key, nil
}

// Close lets the key and the connection go.
func (r *Renewal) Close() {
	_ = r.way.Close()
	_ = r.key.Close()
}
