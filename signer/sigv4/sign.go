package sigv4

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/execproxy/execproxy/signer"
)

// Options configure a Signer. Region, Service and Credentials are required.
type Options struct {
	Region  string // for example "eu-central-1"
	Service string // the service's signing name, for example "eks" or "execute-api"

	// Credentials is asked for every request: give one that caches, as [Credentials] does.
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
// [signer.RequestSigner], [signer.BodyHasher] and [signer.ResponseObserver].
type Signer struct {
	o   Options
	log *slog.Logger
	now func() time.Time

	generation atomic.Pointer[generation]
	skew       skew
}

// generation is one identity and secret. The SDK's signer caches one derived key by access
// key id and day alone, so that a changed secret would go unnoticed until midnight; each
// generation has an SDK signer of its own.
type generation struct {
	accessKeyID, secret string
	sdk                 *v4.Signer
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
		if c := s[i]; !unreserved(c) || c == '~' {
			return false
		}
	}
	return s != ""
}

// String tells region and service, and nothing of the credentials.
func (s *Signer) String() string { return "sigv4 " + s.o.Region + "/" + s.o.Service }

// GoString is String.
func (s *Signer) GoString() string { return s.String() }

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
	view, err := s.view(r)
	if err != nil {
		return nil, err
	}
	creds, err := s.credentials(ctx)
	if err != nil {
		return nil, err
	}
	if creds.SessionToken == "" && len(r.Header[fieldToken]) > 0 {
		return nil, &signer.RequestError{Field: fieldToken,
			Problem: "is on the request, but these credentials have no session token: remove it"}
	}
	hash := view.Header[fieldSHA256] // copied back, also when the SDK gets to see none
	if s.o.OmitContentSHA256 && r.ContentSHA256 != signer.UnsignedPayload {
		delete(view.Header, fieldSHA256)
		hash = nil
	}
	err = s.sdk(creds).SignHTTP(ctx, creds, view, r.ContentSHA256, s.o.Service, s.o.Region, s.skew.correct(s.now()),
		func(o *v4.SignerOptions) {
			o.DisableURIPathEscaping = s.o.SingleEncode
			o.DisableSessionToken = s.o.UnsignedSessionToken
		})
	if err != nil {
		return nil, fmt.Errorf("sign request: %w", err)
	}
	out := make(http.Header, 5)
	out[fieldAuthorization] = view.Header[fieldAuthorization]
	out[fieldDate] = view.Header[fieldDate]
	if creds.SessionToken != "" {
		out[fieldToken] = []string{creds.SessionToken}
	}
	if hash != nil {
		out[fieldSHA256] = hash
	}
	if s.o.BindTarget {
		out[TargetHeader] = view.Header[TargetHeader]
	}
	return out, nil
}

// view makes the request that the SDK gets to see, and to change.
func (s *Signer) view(r *signer.Request) (*http.Request, error) {
	if !validName(r.Method) {
		return nil, &signer.RequestError{Field: "method", Problem: "is not a token"}
	}
	if r.Authority == "" || strings.ContainsAny(r.Authority, " \t\r\n/,@") {
		return nil, &signer.RequestError{Field: "authority", Problem: "want a host, with a port if it is sent with one"}
	}
	path, err := viewPath(r.Path, s.o.Path, s.o.SingleEncode)
	if err != nil {
		return nil, err
	}
	if err := requireQuery(r.RawQuery); err != nil {
		return nil, err
	}
	if r.ContentSHA256 != signer.UnsignedPayload && !isHash(r.ContentSHA256) {
		return nil, &signer.RequestError{Field: "body", Problem: "has no SHA-256 in lower-case hex to sign"}
	}
	view := &http.Request{
		Method: r.Method,
		// Without a scheme the SDK takes no port for the default one, so it leaves the
		// authority alone; it would make "::1" of "[::1]:443".
		Host:   r.Authority,
		URL:    &url.URL{Opaque: "//host" + path, RawQuery: r.RawQuery},
		Header: make(http.Header, len(r.Header)+5),
	}
	for name, values := range r.Header {
		low := strings.ToLower(name)
		if len(values) == 0 || replaced(low) || neverSigned(low) {
			continue
		}
		if problem := checkField(low, values); problem != "" {
			return nil, &signer.RequestError{Field: fieldName(low), Problem: problem}
		}
		key := http.CanonicalHeaderKey(name)
		if _, twice := view.Header[key]; twice {
			return nil, &signer.RequestError{Field: fieldName(low), Problem: "is there twice, in different case"}
		}
		if low == "content-length" { // the SDK reads it from the request, not from the header
			n, err := strconv.ParseUint(values[0], 10, 63)
			if err != nil {
				return nil, &signer.RequestError{Field: fieldName(low), Problem: "is not a number"}
			}
			view.ContentLength = int64(n)
			continue
		}
		view.Header[key] = values
	}
	view.Header[fieldSHA256] = []string{r.ContentSHA256}
	if s.o.BindTarget {
		view.Header[TargetHeader] = []string{targetHash(r)}
	}
	return view, nil
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
	if expired(creds, s.now()) {
		return creds, fmt.Errorf("sign request: %w", &CredentialsError{Err: ErrExpired, Cure: cureExpired})
	}
	return creds, nil
}

// sdk returns the SDK's signer for these credentials.
func (s *Signer) sdk(creds aws.Credentials) *v4.Signer {
	if g := s.generation.Load(); g != nil && g.accessKeyID == creds.AccessKeyID && g.secret == creds.SecretAccessKey {
		return g.sdk
	}
	g := &generation{creds.AccessKeyID, creds.SecretAccessKey, v4.NewSigner()}
	s.generation.Store(g)
	return g.sdk
}

// expired compares wall clocks: the monotonic one stands still while a machine sleeps.
func expired(creds aws.Credentials, now time.Time) bool {
	return creds.CanExpire && !now.Round(0).Before(creds.Expires.Round(0))
}
