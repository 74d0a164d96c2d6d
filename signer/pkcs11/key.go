package pkcs11

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// Key is a private key on a token, and its certificate chain. It implements [signer.Key].
type Key struct {
	o        *Options
	connect  connector
	uri      *URI // of this token and this key, and of no other
	ref      keyRef
	public   crypto.PublicKey
	chain    [][]byte
	leaf     *x509.Certificate // nil without a chain
	schemes  []tls.SignatureScheme
	sessions chan struct{} // one for each signature in the module
	queued   atomic.Int64
	reopened atomic.Uint64

	life context.Context // ends with Close
	end  context.CancelFunc
	wg   sync.WaitGroup // reopenings

	changing sync.Mutex // one of StoreCertificate and Destroy at a time

	mu      sync.Mutex
	closed  bool
	link    *link         // nil before the first one, and after Close
	opening chan struct{} // closed when the reopening under way ends; nil without one
	failed  error         // why the last reopening failed, until a signature succeeds
	again   time.Time     // when to try the next one
	hold    time.Duration
}

var _ signer.Key = (*Key)(nil)

// Stats are figures of a Key.
type Stats struct {
	Reopened uint64 // how often a new process had to open the key again
	Queued   int    // signatures that wait for a session now
}

// Stats returns the figures of now.
func (k *Key) Stats() Stats {
	return Stats{Reopened: k.reopened.Load(), Queued: int(k.queued.Load())}
}

// Public returns the public key.
func (k *Key) Public() crypto.PublicKey { return k.public }

// CertificateChain returns the chain, DER, leaf first; none where there is no certificate.
func (k *Key) CertificateChain() [][]byte { return append([][]byte(nil), k.chain...) }

// SupportedSignatureAlgorithms returns the schemes with which the token made a right
// signature when the key was opened, those of TLS 1.3 first. A key with PKCS #1 v1.5 alone
// authenticates with TLS 1.2 only.
func (k *Key) SupportedSignatureAlgorithms() []tls.SignatureScheme {
	return append([]tls.SignatureScheme(nil), k.schemes...)
}

// Location returns the URI of this very key: token, serial number, label, id, and the
// module where the URI it was opened by names it. It holds nothing of a PIN.
func (k *Key) Location() string { return k.uri.text([]string{"module-name", "module-path"}) }

// String tells the kind of key, whose it is and where it is.
func (k *Key) String() string {
	kind := signer.Kind(k.public) + " key"
	if k.leaf != nil {
		kind += " of " + k.leaf.Subject.String()
	}
	return kind + " at " + k.Location()
}

// Format writes String whatever the verb: none may show the inside.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// Sign signs a digest; see [crypto.Signer]. The token brings its own randomness. It takes
// Options.Timeout at most, waiting for a session and for the token's return included.
func (k *Key) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	m, err := signRequest(k.public, digest, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(k.life, k.o.Timeout)
	defer cancel()
	sig, err := k.sign(ctx, m)
	if err != nil && errors.Is(err, context.Canceled) {
		return nil, ErrClosed
	}
	return sig, err
}

// signWith makes one signature in the child of l, without another try. It waits for one
// of the sessions first.
func (k *Key) signWith(ctx context.Context, l *link, m *wire.Sign) ([]byte, error) {
	if err := k.session(ctx); err != nil {
		return nil, err
	}
	var reply wire.Signature
	err := l.host.call(ctx, wire.KindSign, m, &reply, k.o.Timeout, func() { <-k.sessions })
	if errors.Is(err, context.DeadlineExceeded) {
		// The module has the rest of its own time; whoever waits has none left.
		return nil, &Error{What: "module " + l.host.module, Err: ErrHung, Detail: fmt.Sprintf("not within %v", k.o.Timeout),
			Cure: "look whether its token is there and reachable"}
	}
	if failed := (*wire.Failed)(nil); errors.As(err, &failed) {
		if failed.Call == "C_Login" { // of a key that wants the PIN for each signature
			return nil, k.connect.loginFailed(failed, tokenName(l.token))
		}
		return nil, k.connect.explain(failed, k.what())
	}
	return reply.Signature, err
}

// session waits for one of the sessions.
func (k *Key) session(ctx context.Context) error {
	select {
	case k.sessions <- struct{}{}:
		return nil
	default:
	}
	k.queued.Add(1)
	defer k.queued.Add(-1)
	select {
	case k.sessions <- struct{}{}:
		return nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &Error{What: k.what(), Err: ErrBusy, Detail: fmt.Sprintf("none became free within %v", k.o.Timeout),
				Cure: "ask for fewer signatures at once"}
		}
		return ctx.Err()
	}
}

func (k *Key) what() string { return "key " + k.Location() }

// selfTest signs with every scheme that the key may have, and keeps those that work.
func (k *Key) selfTest(ctx context.Context, l *link) error {
	var last error
	for _, s := range schemesFor(k.public) {
		h := s.hash.New()
		h.Write([]byte("execproxy tries what this key can do"))
		digest := h.Sum(nil)
		m, err := signRequest(k.public, digest, s.opts())
		if err != nil { // the modulus is too short for it
			last = err
			continue
		}
		sig, err := k.signWith(ctx, l, m)
		switch {
		case err == nil && s.verify(k.public, digest, sig):
			k.schemes = append(k.schemes, s.id)
		case err == nil:
			last = fmt.Errorf("its signature with %v does not verify", s.id)
		case ctx.Err() != nil:
			return ctx.Err()
		case l.host.dead() != nil:
			return err
		default:
			if e := (*Error)(nil); errors.As(err, &e) && e.refused {
				return err
			}
			last = err
		}
	}
	if len(k.schemes) > 0 {
		return nil
	}
	e := &Error{What: k.what(), Err: ErrUnsupported, Detail: "the token makes no signature that TLS takes",
		Cure: "use an EC P-256, EC P-384 or RSA key that may sign"}
	if why := (*Error)(nil); errors.As(last, &why) {
		e.Detail += ": " + why.Detail
	} else if last != nil {
		e.Detail += ": " + last.Error()
	}
	return e
}

// Close ends the key's process and waits for its end. Sign fails from then on, and
// signatures that are under way fail, too. Closing twice is no error.
func (k *Key) Close() error {
	k.mu.Lock()
	k.closed = true
	l := k.link
	k.mu.Unlock()
	k.end()
	if l != nil {
		l.host.close(ErrClosed)
	}
	k.wg.Wait()
	return nil
}
