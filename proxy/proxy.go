package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/execproxy/execproxy/signer"
)

const (
	defaultMaxHashed  = 3 << 20  // what kube-apiserver takes at most
	defaultHashMemory = 64 << 20 // over all requests
)

// Request is what will be sent upstream, as a signer must see it. Content-Length,
// Connection, Upgrade and Trailer, which the transports write, are not in its Header.
type Request = signer.Request

// Options configure a Proxy. Server and Transport are required.
type Options struct {
	// Server is the pinned API server: https, host with or without a port, and
	// optionally a base path. It is put before the path of every request that does
	// not have it already, so that nothing beside it is ever reached.
	Server *url.URL

	// Transport is the way out. It must not add Accept-Encoding, follow
	// redirects or retry what may have been processed.
	Transport http.RoundTripper
	// Streams is the way out for requests that are passed from stream to stream: see
	// [Streams]. Nil: none are.
	Streams StreamTransport
	// UpgradeTransport is the way out for WebSocket and SPDY: HTTP/1.1, a
	// connection for each. The Body of its 101 is an io.ReadWriteCloser. Without
	// it, upgrades are answered with 501.
	UpgradeTransport http.RoundTripper
	// Anonymous and AnonymousUpgrade are the same without our certificate. They
	// are used for nothing but requests that ForeignAuthorization passes through.
	Anonymous, AnonymousUpgrade http.RoundTripper

	// Sign returns the header fields that authenticate r. It must not change r
	// nor keep it. Nil: the certificate authenticates. An error with a method
	// Public() string has that text shown to the client; of any other the text
	// is shown with everything that looks like a credential taken out.
	Sign func(ctx context.Context, r *Request) (http.Header, error)
	// SignFields is Sign for [Streams]: signer.FieldSigner.SignFields. Nil beside a Sign: every
	// request waits for Sign, on a goroutine of its own.
	SignFields func(r *Request, sent []signer.Field, out *signer.Fields) (ok bool, err error)
	// Refused is asked when the server answers 401 or 403 to a signed request;
	// took is the time of the round trip. When it returns true (the clock's skew
	// has been learnt, credentials have been renewed), a request that can be
	// replayed is signed and sent once more. It must not read the body.
	Refused func(res *http.Response, took time.Duration) bool

	// HashBody tells that Sign needs ContentSHA256.
	HashBody bool
	// UnsignedPayload lets bodies over MaxHashedBody go out unhashed, as
	// UNSIGNED-PAYLOAD. Otherwise they are answered with 413.
	UnsignedPayload bool
	// MaxHashedBody is in bytes. 0: 3 MiB.
	MaxHashedBody int64
	// HashMemory caps the bytes of all bodies held for hashing. 0: 64 MiB.
	HashMemory int64

	// DisableCompression drops Accept-Encoding, so that the server compresses
	// nothing: a kubeconfig's disable-compression, whose client does not read it.
	DisableCompression bool

	// Verified reports whether a connection's client has shown the session's
	// pair. Nil: it has where the TLS configuration verified a chain.
	Verified func(*tls.ConnectionState) bool

	// ForeignAuthorization decides on requests with an Authorization of their own.
	ForeignAuthorization Policy

	Logger *slog.Logger // nil: nothing is logged
}

// Proxy is the handler in front of one API server. It is safe for concurrent
// use, and must be closed.
type Proxy struct {
	server    string // for messages
	host      string // where to dial, in the shape of URL.Host
	authority string // what the server is called in Host
	base      string // escaped base path, without the last slash; "" for none

	named, anonymous way

	verified   func(*tls.ConnectionState) bool
	sign       func(context.Context, *Request) (http.Header, error)
	signFields func(*Request, []signer.Field, *signer.Fields) (bool, error)
	refused    func(*http.Response, time.Duration) bool
	streams    StreamTransport
	hash       bool
	unsigned   bool
	maxHashed  int64
	memory     *memory
	memoryWait time.Duration
	foreign    Policy

	log     *slog.Logger
	rules   *rules
	buffers *buffers
	flights *flights
	count   counters
}

// way is a way out: with our identity, or without.
type way struct{ plain, upgrade http.RoundTripper }

// New checks the options. Its errors name the option.
func New(o Options) (*Proxy, error) {
	if o.Transport == nil {
		return nil, errors.New("proxy: option Transport is missing")
	}
	if o.ForeignAuthorization == Passthrough && (o.Anonymous == nil || o.UpgradeTransport != nil && o.AnonymousUpgrade == nil) {
		return nil, errors.New("proxy: foreign authorization is to be passed through, which needs the options Anonymous and AnonymousUpgrade")
	}
	p := &Proxy{
		named:      way{o.Transport, o.UpgradeTransport},
		anonymous:  way{o.Anonymous, o.AnonymousUpgrade},
		verified:   o.Verified,
		sign:       o.Sign,
		signFields: o.SignFields,
		refused:    o.Refused,
		streams:    o.Streams,
		hash:       o.HashBody,
		unsigned:   o.UnsignedPayload,
		maxHashed:  o.MaxHashedBody,
		memoryWait: memoryWait,
		foreign:    o.ForeignAuthorization,
		log:        o.Logger,
		rules:      newRules(&o),
		buffers:    newBuffers(),
		flights:    newFlights(),
	}
	if p.verified == nil {
		p.verified = func(s *tls.ConnectionState) bool { return s != nil && len(s.VerifiedChains) > 0 }
	}
	if err := p.pin(o.Server); err != nil {
		return nil, err
	}
	if p.maxHashed <= 0 {
		p.maxHashed = defaultMaxHashed
	}
	limit := o.HashMemory
	if limit <= 0 {
		limit = defaultHashMemory
	}
	if limit < roundUp(p.maxHashed) {
		return nil, fmt.Errorf("proxy: option HashMemory is %d bytes, less than one body of MaxHashedBody (%d): raise it", limit, roundUp(p.maxHashed))
	}
	p.memory = newMemory(limit)
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	return p, nil
}

// pin takes the server's address apart.
func (p *Proxy) pin(u *url.URL) error {
	switch {
	case u == nil || u.Host == "" || u.Hostname() == "":
		return errors.New("proxy: no server: give its address as https://host:port")
	case u.Scheme != "https":
		return fmt.Errorf("proxy: server %s is not https: give its address as https://host:port", u.Redacted())
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "":
		return fmt.Errorf("proxy: server %s has more than host, port and path in it: give its address as https://host:port/path", (&url.URL{Scheme: u.Scheme, Host: u.Host}).Redacted())
	}
	authority, err := httpguts.PunycodeHostPort(u.Host)
	if err != nil || !httpguts.ValidHostHeader(authority) {
		return fmt.Errorf("proxy: server %s has no valid host name", u.Redacted())
	}
	p.host, p.authority = u.Host, withoutZone(authority)
	p.base = strings.TrimRight(u.EscapedPath(), "/")
	if p.base != "" {
		if p.base[0] != '/' { // what URL.JoinPath makes of a URL without a path
			p.base = "/" + p.base
		}
		if _, err := parseTarget(p.base, "/base", false); err != nil || strings.HasPrefix(p.base, "//") {
			return fmt.Errorf("proxy: server %s has a path that cannot be put before a request's: give it without // and dots", u.Redacted())
		}
	}
	p.server = "https://" + p.authority + p.base
	return nil
}

// withoutZone takes the zone from an IPv6 literal, as net/http does when it
// writes Host (RFC 6874 section 4): what is signed must be what is sent.
func withoutZone(host string) string {
	if !strings.HasPrefix(host, "[") {
		return host
	}
	end := strings.LastIndexByte(host, ']')
	zone := strings.IndexByte(host, '%')
	if zone < 0 || end < zone {
		return host
	}
	return host[:zone] + host[end:]
}

// Unix is the handler for the private Unix socket.
func (p *Proxy) Unix() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, false) })
}

// Loopback is the handler for the TCP listener: the same, but it answers 403
// to requests whose Host is not loopback, or which a browser sends on behalf
// of a page that is not.
func (p *Proxy) Loopback() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, true) })
}

// Close ends it: upgraded connections are cut, requests in flight are
// cancelled, new ones are answered with 503. It does not wait.
func (p *Proxy) Close() { p.flights.close() }

// EndWatches cuts what has no end of its own, watches and followed logs, and
// answers new ones with 503, so that a server that shuts down has to wait for
// the rest alone. Clients of a watch begin it anew by themselves, and at once.
func (p *Proxy) EndWatches() {
	p.flights.finite.Store(true)
	p.flights.cut(func(x *flight) bool { return x.endless })
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, loopback bool) {
	if r.Context().Value(triedKey{}) == nil { // else it was counted when it was a passage
		p.count.requests.Add(1)
	}
	x := &exchange{p: p, w: w, r: r}
	cancel := x.watch()
	defer cancel()
	x.flight.cut, x.flight.endless = cancel, endless(r)
	if !p.flights.add(&x.flight) {
		p.refuse(w, r, p.shuttingDown())
		return
	}
	defer p.flights.remove(&x.flight)

	var no *refusal
	if x.anonymous, no = p.admit(&caller{r.Method, r.Host, r.Header, p.verified(r.TLS)}, loopback); no != nil {
		p.refuse(w, r, no)
		return
	}
	defer x.close()
	if err := x.run(); err != nil {
		x.fail(err)
	}
}

func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, no *refusal) {
	p.count.fault(no.reason)
	p.log.LogAttrs(r.Context(), slog.LevelInfo, "request refused",
		slog.String("reason", no.reason), slog.Int("code", no.code), slog.String("method", r.Method), slog.String("why", no.message))
	no.write(w, r)
}

func (p *Proxy) shuttingDown() *refusal {
	return &refusal{code: http.StatusServiceUnavailable, reason: ReasonShuttingDown, retryAfter: 1, hangUp: true,
		message: "execproxy: this proxy for " + p.server + " is shutting down; run the command again"}
}

// fail answers for a request that did not get an answer from the server.
func (x *exchange) fail(err error) {
	p := x.p
	var no *refusal
	if errors.As(err, &no) {
		p.refuse(x.w, x.r, no)
		return
	}
	var clientErr error
	if x.body != nil && x.body.upload != nil {
		clientErr = x.body.upload.failed()
	}
	switch {
	case p.flights.closed():
		p.refuse(x.w, x.r, p.shuttingDown())
	case clientErr != nil:
		p.refuse(x.w, x.r, uploadFault(clientErr))
	case x.gone():
		// Nobody is there to read an answer, and there must be none that looks
		// like a success.
		p.count.cancelled.Add(1)
		panic(http.ErrAbortHandler)
	default:
		no := p.upstreamFault(err)
		no.hangUp = x.cut.Load()
		p.log.LogAttrs(x.ctx, slog.LevelWarn, "upstream failed",
			slog.String("server", p.server), slog.String("reason", no.reason), slog.String("error", redactUpstream(err)))
		p.refuse(x.w, x.r, no)
	}
}

// uploadFault tells what was wrong with the client's own body.
func uploadFault(err error) *refusal {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return &refusal{code: http.StatusRequestTimeout, reason: ReasonRequestTimeout, hangUp: true,
			message: "execproxy: the request body did not arrive in time"}
	}
	return &refusal{code: http.StatusBadRequest, reason: ReasonBadRequest, hangUp: true,
		message: "execproxy: the request body broke off or does not have the length that was announced; nothing was taken from it"}
}
