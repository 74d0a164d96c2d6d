package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/transport/h2"
)

// Options are what New needs. Address alone is required.
type Options struct {
	// Address is host:port of the API server, the only thing that is dialled
	// whatever the requests say. The port defaults to 443.
	Address string
	// ServerName is what the server's certificate must be for, and the SNI.
	// It defaults to the host of Address.
	ServerName string
	// InsecureSkipVerify accepts any server certificate.
	InsecureSkipVerify bool
	// Certificate and RootCAs are the Identity of the first generation.
	Certificate *tls.Certificate
	RootCAs     *x509.CertPool
	// Proxy chooses the proxy, as in http.Transport; see ProxyFunc. nil, or a
	// nil URL, means none.
	Proxy func(*http.Request) (*url.URL, error)
	// ProxyRootCAs verify proxies of scheme https. nil means the system's roots.
	ProxyRootCAs *x509.CertPool
	// DialContext opens TCP connections. It defaults to a net.Dialer that
	// notices dead peers.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTimeout bounds the making of a connection: TCP, proxy, TLS and
	// SETTINGS together. Default 10 s.
	DialTimeout time.Duration
	// PingInterval is how long an HTTP/2 connection may be silent before it is
	// asked with a PING, PingTimeout how long the answer may take. Together
	// they are the time in which a dead peer is noticed. Defaults 7 s and 6 s.
	PingInterval, PingTimeout time.Duration
	// NoRepeat leaves it to the caller to send again what the server has declined: it has to
	// be signed anew. Requests of which nothing was sent are repeated all the same.
	NoRepeat bool
	// Flood is told when a connection is ended for what the server does on it; see h2.Options.
	Flood func(kind string)
	// Logger gets what happens to connections; nil discards it.
	Logger *slog.Logger
}

// Transport reaches one API server. It is safe for concurrent use.
type Transport struct {
	o         Options
	log       *slog.Logger
	now       func() time.Time // the wall clock
	rewarmAge time.Duration
	budget    budget
	memory    *h2.Memory // of all connections

	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	current atomic.Pointer[generation]

	mu       sync.Mutex // guards the following, and wg.Add against wg.Wait
	closed   bool
	rotated  uint64
	draining []*generation

	dials, dialErrors, full, resumed, signatures atomic.Uint64
	goAways, deadPeers, retries                  atomic.Uint64
	streams, upgrades                            atomic.Int64
}

// New returns a Transport. It dials nothing; see Prewarm.
func New(o Options) (*Transport, error) {
	host, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		host, port = strings.Trim(o.Address, "[]"), "443"
	}
	if host == "" || port == "" || strings.ContainsAny(host+port, "/@ ") {
		return nil, fmt.Errorf("server address %q: want host:port", o.Address)
	}
	o.Address = net.JoinHostPort(host, port)
	if o.ServerName == "" {
		o.ServerName = host
	}
	for d, def := range map[*time.Duration]time.Duration{
		&o.DialTimeout: 10 * time.Second, &o.PingInterval: 7 * time.Second, &o.PingTimeout: 6 * time.Second,
	} {
		if *d <= 0 {
			*d = def
		}
	}
	if o.DialContext == nil {
		o.DialContext = newDialer(&o).DialContext
	}
	t := &Transport{o: o, log: o.Logger, now: time.Now, rewarmAge: rewarmAge, memory: h2.NewMemory(0)}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	g, err := newGeneration(t, 1, Identity{Certificate: o.Certificate, RootCAs: o.RootCAs})
	if err != nil {
		t.cancel()
		return nil, fmt.Errorf("server %s: %w", o.Address, err)
	}
	t.rotated = 1
	t.current.Store(g)
	return t, nil
}

// maxAttempts bounds how often one request is offered to the server.
const maxAttempts = 6

// RoundTrip implements http.RoundTripper. It goes to Options.Address whatever
// the request's URL names. Fields of the request that would close the shared
// connection are left out. The error is that of the request's context, of its
// body, or an *UpstreamError.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	out, body := prepare(r)
	for attempt := 0; ; attempt++ {
		g, now := t.current.Load(), t.now()
		if err := t.ready(g, now); err != nil {
			closeBody(r)
			return nil, err
		}
		g.touch(now)
		res, again, err := g.roundTrip(out)
		if err == nil {
			if body != nil {
				body.settle(false)
			}
			t.opened(res, r)
			return res, nil
		}
		if r.Context().Err() == nil && again && attempt+1 < maxAttempts && (body == nil || body.rewind(r.GetBody)) {
			t.retries.Add(1)
			// The first repeat is at once: a GOAWAY is the usual reason.
			if attempt == 0 || sleep(r.Context(), 5*time.Millisecond<<attempt) == nil {
				continue
			}
		}
		if body != nil {
			body.settle(true)
			if berr := body.failed(); berr != nil && errors.Is(err, berr) {
				return nil, fmt.Errorf("reading the request's body: %w", berr)
			}
		}
		return nil, t.final(r, err)
	}
}

// roundTrip makes one attempt. again says that the server surely handled
// nothing and that trying anew may help.
func (g *generation) roundTrip(r *http.Request) (res *http.Response, again bool, err error) {
	c, err := g.conn(r.Context())
	if errors.Is(err, errHTTP1) {
		res, err = g.roundTripHTTP1(r)
		return res, errors.Is(err, errRetired), err
	}
	if err != nil {
		return nil, errors.Is(err, errRetired), err
	}
	res, err = c.roundTrip(r)
	if err == nil {
		return res, false, nil
	}
	again = !g.t.o.NoRepeat || errors.Is(err, h2.ErrUnsent)
	err = streamError(g.t.o.Address, err)
	return nil, again && Unsent(err), err
}

// prepare returns the request as it goes out: r itself where nothing stands
// against it, otherwise a shallow copy.
func prepare(r *http.Request) (*http.Request, *requestBody) {
	out := r
	var body *requestBody
	if r.Body != nil && r.Body != http.NoBody {
		body = &requestBody{rc: r.Body}
		out = shallow(out, r)
		out.Body = body
		out.GetBody = nil // net/http's own repeats are not wanted
	}
	if _, ok := r.Header["Connection"]; ok || r.Close {
		// One client's "close" would cost all others their connection, and the
		// key a handshake.
		out = shallow(out, r)
		out.Close = false
		out.Header = r.Header.Clone()
		out.Header.Del("Connection")
	}
	return out, body
}

func shallow(out, r *http.Request) *http.Request {
	if out != r {
		return out
	}
	return r.WithContext(r.Context())
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// ready refuses requests that need not try.
func (t *Transport) ready(g *generation, now time.Time) error {
	if g == nil {
		return t.endedError()
	}
	return g.expired(now)
}

func (t *Transport) endedError() error {
	return &UpstreamError{Kind: ErrClosed, Server: t.o.Address, unsent: true}
}

// final is what the caller of a failed request sees.
func (t *Transport) final(r *http.Request, err error) error {
	if cerr := r.Context().Err(); cerr != nil {
		return cerr
	}
	if errors.Is(err, errRetired) {
		if t.current.Load() == nil {
			return t.endedError()
		}
		return &UpstreamError{Kind: ErrNotProcessed, Server: t.o.Address, Err: errRetired, Hint: "send the request again", unsent: true}
	}
	return streamError(t.o.Address, err)
}

func (t *Transport) opened(res *http.Response, r *http.Request) {
	res.Request = r
	if res.Body == nil || res.Body == http.NoBody || res.ContentLength == 0 ||
		res.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	b := &responseBody{ReadCloser: res.Body, server: t.o.Address}
	if res.ProtoMajor == 1 { // of the others each connection knows its streams
		t.streams.Add(1)
		b.ended = func() { t.streams.Add(-1) }
	}
	res.Body = b
}

// Prewarm makes the connection that requests will share, unless it is there. It
// returns nil when the server has taken TLS and the certificate and its
// SETTINGS have arrived. Of a server without HTTP/2 only TLS is known then.
func (t *Transport) Prewarm(ctx context.Context) error {
	for {
		g := t.current.Load()
		if err := t.ready(g, t.now()); err != nil {
			return err
		}
		err := g.warm(ctx)
		if errors.Is(err, errRetired) && t.current.Load() != g {
			continue
		}
		if err != nil && ctx.Err() == nil && errors.Is(err, errRetired) {
			return t.endedError()
		}
		return err
	}
}

func (g *generation) warm(ctx context.Context) error {
	again := 3
	for {
		conns := g.conns.Load()
		if slices.ContainsFunc(*conns, (*conn).usable) {
			return nil
		}
		err := g.more(ctx, conns)
		switch {
		case errors.Is(err, errHTTP1):
			return nil
		case errors.Is(err, errGoAwayAtOnce) && again > 0: // it may be one that is being replaced
			again--
			if err := sleep(ctx, failureHold); err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
}

// Rotate starts a new generation: new requests use the new identity, over a new
// connection with a new TLS session, from the moment it returns. Streams of the
// old one go on until they end, and are cut shortly before the old certificate
// does (10 s, or a tenth of what is left of it). Both fields of id are taken as
// they are. Rotate dials nothing; see Prewarm. On an error nothing changes.
func (t *Transport) Rotate(id Identity) error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return t.endedError()
	}
	g, err := newGeneration(t, t.rotated+1, id)
	if err != nil {
		t.mu.Unlock()
		return fmt.Errorf("server %s: %w", t.o.Address, err)
	}
	t.rotated++
	old := t.current.Swap(g)
	g.used.Store(old.used.Load())
	t.draining = append(t.draining, old)
	t.mu.Unlock()
	old.retire()
	t.log.Info("identity rotated", "server", t.o.Address, "generation", g.number)
	return nil
}

func (t *Transport) forget(g *generation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = slices.DeleteFunc(t.draining, func(o *generation) bool { return o == g })
}

// spawn runs f in a goroutine that Close waits for, unless it is too late.
func (t *Transport) spawn(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

// CloseIdleConnections closes connections that carry nothing. The next request
// dials again.
func (t *Transport) CloseIdleConnections() {
	g := t.current.Load()
	if g == nil {
		return
	}
	g.http1.CloseIdleConnections()
	for _, c := range *g.conns.Load() {
		if open, _ := c.h2.Streams(); open == 0 && g.drop(c) {
			c.drain() // gracefully: a request may have come between
		}
	}
}

// Close ends every connection and every request, and waits until that is done.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.wg.Wait()
		return nil
	}
	t.closed = true
	gens := t.draining
	if g := t.current.Swap(nil); g != nil {
		gens = append(slices.Clone(gens), g)
	}
	t.mu.Unlock()
	t.cancel()
	for _, g := range gens {
		g.cut()
	}
	t.wg.Wait()
	return nil
}
