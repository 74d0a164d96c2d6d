package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/plugin"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/header"
	"github.com/execproxy/execproxy/signer/keyfile"
	"github.com/execproxy/execproxy/signer/token"
)

// What a file holds may be exchanged at any time, and only expiry has a client look again.
const (
	directTokenLife = leastExpiry
	directPairLife  = 5 * time.Minute
)

// Direct is a plain exec credential (KEP-541), for a client that talks to the API server
// itself, from files; nil where a daemon has to keep it, because it costs something to get.
func Direct(ctx context.Context, c *config.Config) (*clientauthentication.Status, error) {
	if err := CheckDirect(c); err != nil {
		return nil, err
	}
	switch c.Auth {
	case config.AuthMTLS:
		return directPair(c, time.Now())
	case config.AuthHeaders:
		return directHeader(ctx, c, time.Now())
	}
	return nil, nil
}

// CheckDirect reports an identity that no client can have for itself.
func CheckDirect(c *config.Config) error {
	switch c.Auth {
	case config.AuthSigV4:
		return &config.FieldError{Field: "auth", Err: fmt.Errorf("%s signs each request, which a client that talks to the API server itself cannot; leave --direct out", c.Auth)}
	case config.AuthMTLS:
		ref, err := c.KeyRef()
		if err != nil {
			return err
		}
		if ref.Hardware() {
			return &config.FieldError{Field: "key", Err: errors.New("a key in a TPM or on a token cannot be handed out; leave --direct out, so that the proxy uses it for the client")}
		}
	}
	return nil
}

// directPair hands out a key from a file.
func directPair(c *config.Config, now time.Time) (*clientauthentication.Status, error) {
	ref, err := c.KeyRef()
	if err != nil {
		return nil, err
	}
	k, err := keyfile.Load(ref.Path, c.Cert) // with all its checks
	if err != nil {
		return nil, err
	}
	defer k.Close()
	key, err := os.ReadFile(ref.Path)
	if err != nil {
		return nil, &config.FieldError{Field: "key", Err: err}
	}
	chain := key
	if c.Cert != "" {
		if chain, err = os.ReadFile(c.Cert); err != nil {
			return nil, &config.FieldError{Field: "cert", Err: err}
		}
	}
	s := &clientauthentication.Status{
		ClientKeyData:         blocks(key, func(kind string) bool { return strings.HasSuffix(kind, "PRIVATE KEY") }),
		ClientCertificateData: blocks(chain, func(kind string) bool { return kind == "CERTIFICATE" }),
	}
	pair, err := tls.X509KeyPair([]byte(s.ClientCertificateData), []byte(s.ClientKeyData))
	if err != nil { // exchanged just now, one file after the other
		return nil, &config.FieldError{Field: "cert", Err: errors.New("is not that of the key; try again when both files are in place")}
	}
	s.ExpirationTimestamp = now.Add(directPairLife)
	if end := pair.Leaf.NotAfter; end.Before(s.ExpirationTimestamp) {
		s.ExpirationTimestamp = end
	}
	return s, nil
}

// blocks is the PEM blocks of some kind, without what stands between.
func blocks(data []byte, want func(kind string) bool) string {
	var out bytes.Buffer
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			return out.String()
		}
		if want(b.Type) {
			_ = pem.Encode(&out, b) // a bytes.Buffer takes it all
		}
	}
}

// directHeader hands out the token that stands in the one header that is one.
func directHeader(ctx context.Context, c *config.Config, now time.Time) (*clientauthentication.Status, error) {
	fail := func(text string) (*clientauthentication.Status, error) {
		return nil, &config.FieldError{Field: "header", Err: errors.New(text)}
	}
	s, err := header.New(c.Headers)
	if err != nil {
		return nil, err
	}
	fields, err := s.SignRequest(ctx, &signer.Request{})
	if err != nil {
		return nil, err
	}
	values := fields["Authorization"]
	if len(fields) != 1 || len(values) != 1 {
		return fail("a client that talks to the API server itself sends a bearer token and no other header; name Authorization=@FILE alone, or leave --direct out")
	}
	scheme, text, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return fail("Authorization is not \"Bearer TOKEN\"; write that, on one line")
	}
	text = strings.TrimLeft(text, " ")
	if err := token.CheckToken(text); err != nil {
		return fail("the token of Authorization cannot be sent: " + err.Error())
	}
	return &clientauthentication.Status{Token: text, ExpirationTimestamp: now.Add(directTokenLife)}, nil
}

// handed remembers which clients have the credential of now: one that asks again before
// it expired was refused with it (KEP-541: 401).
type handed struct {
	mu         sync.Mutex
	credential *token.Credential
	at         map[int]time.Time // by the client's process
}

// again reports when a client was given what was handed out last; ok is false for one that
// was not.
func (h *handed) again(client int) (at time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok = h.at[client]
	return at, ok && client != 0
}

// maxHanded bounds what is remembered of clients; the next credential begins anew.
const maxHanded = 4096

func (h *handed) note(client int, k *token.Credential, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.credential != k {
		h.credential, h.at = k, map[int]time.Time{}
	}
	if client != 0 && len(h.at) < maxHanded {
		h.at[client] = at
	}
}

// startDirect is the start of a daemon that keeps a credential and has no proxy. It is
// the only one that hands out what the API server accepts, and it was asked to.
func (d *Daemon) startDirect(ctx context.Context) error {
	f, err := d.open(ctx, d.config, d.homes)
	if err != nil {
		return err
	}
	d.front.Store(f)
	d.Warn(f.id.warnings...)
	d.opt.Sockets = nil // the API is elsewhere
	if err := d.listenControl(ctx, d.opt.Places.Socket(d.opt.ID)); err != nil {
		return err
	}
	if addr := d.config.MetricsAddress; addr != "" {
		if err := d.listenMetrics(addr); err != nil {
			return err
		}
	}
	d.Go(func() { f.id.watch(f.work, func() error { return nil }) })
	d.life.begin()
	if d.opt.Ready != nil {
		if err := d.opt.Ready(d); err != nil {
			return err
		}
	}
	d.obtentions.recall(failurePath(d.opt.Places, d.opt.ID))
	d.log.Info("ready", "version", d.opt.Version, "id", d.opt.ID, "auth", d.config.Auth, "identity", f.id.name())
	close(d.ready)
	return nil
}

// fresh sees to it that an identity that is handed out, or signs, is at hand. Where it is
// not, every request would fail, and kubectl shows nothing of that while it discovers.
func (d *Daemon) fresh(ctx context.Context, ask Ask) error {
	id := d.front.Load().id
	b := id.bearer
	if b == nil {
		if err := id.signs(ctx); err != nil {
			return &refusal{Message: err.Error()}
		}
		return nil
	}
	if ask.Credential != nil {
		if !b.login {
			return &refusal{Message: "this daemon gets its credential itself and takes none from others"}
		}
		if err := b.put(ctx, ask.Credential); err != nil {
			return &refusal{Message: err.Error()}
		}
	}
	if _, err := b.cache.Credential(ctx); err != nil {
		return &refusal{Message: err.Error(), Login: b.login}
	}
	if b.login && ask.Interactive && b.cache.Stale() {
		return &refusal{Message: "the API server refuses the credential, and without its user the plugin behind has no other", Login: true}
	}
	return nil
}

// credential is what the plugin prints for a client that talks to the API server itself.
func (d *Daemon) credential(ctx context.Context, ask Ask) (*clientauthentication.Status, error) {
	if !d.life.touch() {
		return nil, errEnding
	}
	b := d.front.Load().id.bearer
	if at, ok := d.handed.again(ask.Client); ok && ask.Credential == nil {
		b.refused(at)
	}
	if err := d.fresh(ctx, ask); err != nil {
		return nil, err
	}
	k, err := b.cache.Credential(ctx)
	if err != nil {
		return nil, &refusal{Message: err.Error(), Login: b.login}
	}
	d.handed.note(ask.Client, k, time.Now())
	return plugin.Status(k), nil
}
