package sigv4

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/execproxy/execproxy/signer"
)

// Options configure a Signer. Region, Service and Credentials are required.
type Options struct {
	Region  string // for example "eu-central-1"
	Service string // the service's signing name, for example "eks" or "execute-api"

	// Credentials is asked for every request: give one that caches, as [Credentials] does.
	// SignFields signs with [Credentials] alone, as no other provider tells whether it would
	// wait.
	Credentials aws.CredentialsProvider

	// Path says what to do about empty and dot segments; by default they are refused. For
	// the services of S3 the default is PathExact.
	Path PathMode

	// SingleEncode encodes the path once for the canonical form instead of twice. It is
	// always set for the services of S3, which alone define it so.
	SingleEncode bool

	// BindTarget adds the signed field TargetHeader.
	BindTarget bool

	// OmitContentSHA256 leaves X-Amz-Content-Sha256 off where the hash is that of a body. S3
	// requires the field, the other services do without. UNSIGNED-PAYLOAD is always sent.
	OmitContentSHA256 bool

	// UnsignedSessionToken sends X-Amz-Security-Token without signing it, as a few services
	// (AWS IoT) want it.
	UnsignedSessionToken bool

	Logger *slog.Logger     // nil: silence
	Clock  func() time.Time // nil: time.Now
}

// Signer signs requests for one region, service and source of credentials. It implements
// [signer.FieldSigner], [signer.BodyHasher] and [signer.ResponseObserver].
type Signer struct {
	o    Options
	kept *Credentials // o.Credentials, if it is one
	log  *slog.Logger
	now  func() time.Time

	key    atomic.Pointer[dayKey] // of the last request
	moment atomic.Pointer[moment] // the same
	skew   skew

	forms sync.Pool // of *form
}

// New returns a Signer. It fails where a required option is missing or contradicts another.
func New(o Options) (*Signer, error) {
	switch {
	case o.Region == "":
		return nil, errors.New("new sigv4 signer: no region: set --aws-region, AWS_REGION or the profile's region")
	case o.Service == "":
		return nil, errors.New("new sigv4 signer: no service: set --aws-service")
	case !validScope(o.Region):
		return nil, fmt.Errorf("new sigv4 signer: region %q: want letters, digits and dashes", o.Region)
	case !validScope(o.Service):
		return nil, fmt.Errorf("new sigv4 signer: service %q: want letters, digits and dashes", o.Service)
	case o.Credentials == nil:
		return nil, errors.New("new sigv4 signer: no credentials provider")
	case o.Path < PathStrict || o.Path > PathNormalized:
		return nil, fmt.Errorf("new sigv4 signer: unknown path mode %d", o.Path)
	}
	if o.Service == "s3" || strings.HasPrefix(o.Service, "s3-") || o.Service == "s3express" {
		if o.Path == PathNormalized {
			return nil, fmt.Errorf("new sigv4 signer: service %q does not normalise paths: do not ask for it", o.Service)
		}
		o.Path, o.SingleEncode = PathExact, true
	}
	s := &Signer{o: o, log: o.Logger, now: o.Clock}
	s.kept, _ = o.Credentials.(*Credentials)
	s.forms.New = func() any { return new(form) }
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s, nil
}

func validScope(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; kinds[c]&unreserved == 0 || c == '~' {
			return false
		}
	}
	return s != ""
}

// String tells region and service, and nothing of the credentials.
func (s *Signer) String() string { return "sigv4 " + s.o.Region + "/" + s.o.Service }

// GoString is String.
func (s *Signer) GoString() string { return s.String() }

// Format is String, whatever the verb.
func (s *Signer) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// HashesBody reports true: the hash of the body is part of what is signed.
func (s *Signer) HashesBody() bool { return true }

// SignRequest returns Authorization, X-Amz-Date and, where they apply, X-Amz-Security-Token,
// X-Amz-Content-Sha256 and [TargetHeader].
//
// It signs every field of r.Header but those that change on the way and those it replaces.
// The time in the signature is the clock's, corrected by what ObserveResponse has seen. It
// returns a *[signer.RequestError] for a request that has no single canonical form or no
// body hash, and a *[CredentialsError] where there are no credentials.
func (s *Signer) SignRequest(ctx context.Context, r *signer.Request) (http.Header, error) {
	f := s.forms.Get().(*form)
	defer s.release(f)
	if err := f.flatten(r.Header); err != nil {
		return nil, err
	}
	if err := f.prepare(s, r, f.given); err != nil {
		return nil, err
	}
	creds, err := s.credentials(ctx)
	if err != nil {
		return nil, err
	}
	m := s.momentAt(s.now())
	var out signer.Fields
	if err := f.finish(s, r, f.given, s.keyOf(&creds, m.day), m, &out); err != nil {
		return nil, err
	}
	h, values := make(http.Header, len(out.List())), make([]string, len(out.List()))
	for i, field := range out.List() { // nobody resets out, so its values last
		values[i] = field.Value
		h[canonicalName(field.Name)] = values[i : i+1 : i+1]
	}
	return h, nil
}

// SignFields is SignRequest for fields, see [signer.FieldSigner]. ok is false where no valid
// credentials are at hand, where they are to be refreshed by who asks for them, and where
// Options.Credentials is not a [Credentials].
func (s *Signer) SignFields(r *signer.Request, sent []signer.Field, out *signer.Fields) (ok bool, err error) {
	if s.kept == nil {
		return false, nil
	}
	now := s.now()
	creds, ok := s.kept.kept.Ready(now)
	if !ok {
		return false, nil
	}
	m := s.momentAt(now)
	k := s.keyOf(creds, m.day)
	if !k.sendable { // net/http will say what is wrong with it
		return false, nil
	}
	f := s.forms.Get().(*form)
	defer s.release(f)
	if err := f.prepare(s, r, sent); err != nil {
		return true, err
	}
	return true, f.finish(s, r, sent, k, m, out)
}

// momentAt returns the second in which a request is signed at now.
func (s *Signer) momentAt(now time.Time) *moment {
	now = s.skew.correct(now)
	m := s.moment.Load()
	if m == nil || m.unix != now.Unix() {
		m = newMoment(now, s.o.Region, s.o.Service)
		s.moment.Store(m)
	}
	return m
}

// keyOf returns the signing key of credentials for a day. The one before is forgotten.
func (s *Signer) keyOf(creds *aws.Credentials, day string) *dayKey {
	k := s.key.Load()
	if k.fits(creds, day) {
		return k
	}
	fresh := newDayKey(creds, day, s.o.Region, s.o.Service)
	s.key.CompareAndSwap(k, fresh) // or else somebody with other credentials was faster
	return fresh
}

func (s *Signer) credentials(ctx context.Context) (aws.Credentials, error) {
	creds, err := s.o.Credentials.Retrieve(ctx)
	if err != nil {
		var known *CredentialsError
		if !errors.As(err, &known) {
			err = &CredentialsError{Err: err}
		}
		return creds, fmt.Errorf("sign request: %w", err)
	}
	if !creds.HasKeys() {
		return creds, fmt.Errorf("sign request: %w", &CredentialsError{Err: errors.New("the provider gave none")})
	}
	if expired(&creds, s.now()) {
		return creds, fmt.Errorf("sign request: %w", &CredentialsError{Err: ErrExpired, Cure: cureExpired})
	}
	return creds, nil
}

// expired compares wall clocks: the monotonic one stands still while a machine sleeps.
func expired(creds *aws.Credentials, now time.Time) bool {
	return creds.CanExpire && !now.Round(0).Before(creds.Expires.Round(0))
}
