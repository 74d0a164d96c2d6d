package sigv4

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/execproxy/execproxy/signer/refresh"
)

// How credentials are kept.
const (
	DefaultTimeout      = 10 * time.Second // for one attempt to get credentials
	DefaultRefreshAhead = 5 * time.Minute  // before they expire

	restless = 30 * time.Second // Invalidate does nothing sooner than this after an attempt

	cureExpired = "renew them, or set this machine's clock"
)

// CacheOptions configure NewCredentials.
type CacheOptions struct {
	Timeout      time.Duration    // 0: DefaultTimeout
	RefreshAhead time.Duration    // 0: DefaultRefreshAhead; at most half of what a set of credentials lives
	Logger       *slog.Logger     // nil: silence
	Clock        func() time.Time // nil: time.Now
}

// Credentials is an [aws.CredentialsProvider] that caches. It gets new credentials ahead of
// expiry, serves those it has while a refresh fails and they are still valid, makes one
// attempt at a time, bounds each in time, and pauses after a failed one.
type Credentials struct {
	source aws.CredentialsProvider
	o      CacheOptions
	region string
	kept   *refresh.Cache[*aws.Credentials]
}

// NewCredentials returns a cache in front of source, which must respect the context it is
// given. It does not call source yet.
func NewCredentials(source aws.CredentialsProvider, o CacheOptions) *Credentials {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.RefreshAhead <= 0 {
		o.RefreshAhead = DefaultRefreshAhead
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	c := &Credentials{source: source, o: o}
	c.kept = refresh.New(refresh.Options[*aws.Credentials]{
		Source: c.fetch, Check: check, Explain: c.explain, Expires: expires,
		Timeout: o.Timeout, Ahead: o.RefreshAhead, Clock: o.Clock,
		Kept: func(k *aws.Credentials) {
			o.Logger.Debug("got aws credentials", slog.String("source", k.Source),
				slog.String("accessKeyID", k.AccessKeyID), slog.Time("expires", k.Expires))
		},
		Failed: func(err error, serves bool, retryAt time.Time) {
			o.Logger.Warn("aws credentials were not refreshed", slog.Any("error", err),
				slog.Bool("oldOnesServe", serves), slog.Time("retry", retryAt))
		},
	})
	return c
}

func (c *Credentials) fetch(ctx context.Context) (*aws.Credentials, error) {
	k, err := c.source.Retrieve(ctx)
	return &k, err
}

func check(k *aws.Credentials, now time.Time) error {
	switch {
	case !k.HasKeys():
		return errors.New("the source gave an empty key")
	case expired(k, now):
		return &CredentialsError{Err: ErrExpired, Cure: cureExpired}
	}
	return nil
}

func expires(k *aws.Credentials) time.Time {
	if !k.CanExpire {
		return time.Time{}
	}
	return k.Expires
}

func (c *Credentials) explain(err error, late bool) error {
	if err == nil {
		return &CredentialsError{Err: ErrExpired, Cure: cureExpired}
	}
	var known *CredentialsError
	if !errors.As(err, &known) {
		err = &CredentialsError{Err: err}
	}
	if late {
		err = fmt.Errorf("gave up after %s: %w", c.o.Timeout, err)
	}
	return err
}

// Region is the region that LoadCredentials found; "" where there is none.
func (c *Credentials) Region() string { return c.region }

// String tells whose credentials these are: the access key id, which is no secret.
func (c *Credentials) String() string {
	if s, ok := c.kept.Look(); ok {
		return "aws credentials " + s.Value.AccessKeyID
	}
	return "aws credentials, none yet"
}

// GoString is String.
func (c *Credentials) GoString() string { return c.String() }

// Format is String, whatever the verb.
func (c *Credentials) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// Retrieve returns valid credentials: those at hand, or else new ones. Where it has to
// attempt a refresh while valid ones are at hand (nobody calls Run, or Invalidate was
// called), a failure is logged and those are returned. It fails with a *[CredentialsError],
// or with ctx.Err() if ctx ends first.
func (c *Credentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	k, err := c.kept.Get(ctx)
	if err != nil {
		return aws.Credentials{}, err
	}
	return *k, nil
}

// Invalidate has the next Retrieve, or Run, get new credentials: call it when the server
// refuses to authenticate. Nothing happens within 30 seconds of the last attempt, so that a
// server that refuses everything does not become a storm of calls. Should the refresh fail,
// the old credentials serve on while they last.
func (c *Credentials) Invalidate() {
	if s, ok := c.kept.Look(); ok && c.kept.Now().Sub(s.Attempt) >= restless {
		c.kept.Invalidate()
	}
}

// Run refreshes credentials ahead of expiry until ctx ends, and returns nil then. With it,
// requests do not wait for refreshes.
func (c *Credentials) Run(ctx context.Context) error {
	c.kept.Run(ctx, nil)
	return nil
}
