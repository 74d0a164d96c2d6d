package sigv4

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/processcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
)

// CredentialsOptions configure LoadCredentials. All are optional.
type CredentialsOptions struct {
	Profile string // "": AWS_PROFILE, else "default"
	Region  string // "": AWS_REGION, else the profile's

	RoleARN     string // a role to assume with what the chain yields
	ExternalID  string // for that role
	SessionName string // for that role; "": "execproxy"

	Timeout      time.Duration    // for one attempt; 0: DefaultTimeout
	RefreshAhead time.Duration    // 0: DefaultRefreshAhead
	Logger       *slog.Logger     // nil: silence
	Clock        func() time.Time // nil: time.Now

	// SDK are further options for the SDK's configuration: other files, endpoints, clients.
	SDK []func(*config.LoadOptions) error
}

// LoadCredentials gets credentials from the AWS SDK's default chain: environment, shared
// files, SSO, credential process, web identity, container, instance metadata, and the role
// chains of profiles. It is the one function of this package that looks at the environment
// and at the files of the AWS CLI, because that is what the chain is; calling it is asking
// for that.
//
// It gets credentials once, so that what is wrong comes out now, as a *[CredentialsError].
// For every refresh it walks the chain anew: files that changed meanwhile count. Each
// attempt is bounded by Timeout, also where there is no instance metadata service.
//
// The SDK runs a credential_process with the stdin and stderr of this process, for prompts:
// a daemon must not have the client's terminal there.
func LoadCredentials(ctx context.Context, o CredentialsOptions) (*Credentials, error) {
	if o.ExternalID != "" && o.RoleARN == "" {
		return nil, &CredentialsError{Err: errors.New("an external id without a role"), Cure: "set --aws-role-arn, too"}
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	source := &chain{o: o, client: awshttp.NewBuildableClient().WithTimeout(o.Timeout)}
	c := NewCredentials(source, CacheOptions{
		Timeout: o.Timeout, RefreshAhead: o.RefreshAhead, Logger: o.Logger, Clock: o.Clock,
	})
	if _, err := c.Retrieve(ctx); err != nil {
		return nil, err
	}
	c.region = source.region
	return c, nil
}

// chain walks the SDK's default chain each time it is asked. Credentials asks it one at a time.
type chain struct {
	o      CredentialsOptions
	client *awshttp.BuildableClient
	region string // what the last walk found

	config atomic.Pointer[aws.Config] // of that walk
}

func (ch *chain) Retrieve(ctx context.Context) (aws.Credentials, error) {
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(ch.client),
		config.WithLogger(logging.Nop{}), // it would write to standard error; what is wrong comes back as an error
		config.WithProcessCredentialOptions(func(p *processcreds.Options) { p.Timeout = ch.o.Timeout }),
		config.WithAPIOptions([]func(*middleware.Stack) error{endWith(ctx)}),
	}
	if ch.o.Profile != "" {
		options = append(options, config.WithSharedConfigProfile(ch.o.Profile))
	}
	if ch.o.Region != "" {
		options = append(options, config.WithRegion(ch.o.Region))
	}
	cfg, err := config.LoadDefaultConfig(ctx, append(options, ch.o.SDK...)...)
	if err != nil {
		return aws.Credentials{}, ch.explain(err, nil)
	}
	ch.region = cfg.Region
	ch.config.Store(&cfg)
	provider := cfg.Credentials
	if ch.o.RoleARN != "" {
		if cfg.Region == "" {
			return aws.Credentials{}, &CredentialsError{Err: errors.New("no region to assume the role in"),
				Cure: "set --aws-region, AWS_REGION or the profile's region"}
		}
		// The base credentials first: whether they or the role fail is a different cure.
		if _, err := provider.Retrieve(ctx); err != nil {
			return aws.Credentials{}, ch.explain(err, provider)
		}
		provider = stscreds.NewAssumeRoleProvider(sts.NewFromConfig(cfg), ch.o.RoleARN, func(r *stscreds.AssumeRoleOptions) {
			r.RoleSessionName = "execproxy"
			if ch.o.SessionName != "" {
				r.RoleSessionName = ch.o.SessionName
			}
			if ch.o.ExternalID != "" {
				r.ExternalID = aws.String(ch.o.ExternalID)
			}
		})
		creds, err := provider.Retrieve(ctx)
		if err != nil {
			return creds, &CredentialsError{
				Err:  fmt.Errorf("assume role %s: %w", ch.o.RoleARN, err),
				Cure: "check the role's trust policy, --aws-external-id and the credentials of " + ch.profile(),
			}
		}
		return creds, nil
	}
	creds, err := provider.Retrieve(ctx)
	if err != nil {
		return creds, ch.explain(err, provider)
	}
	return creds, nil
}

// endWith has every API call of a walk end with the walk. The SDK's cache detaches them
// from the caller's context: one that hangs would hang on behind our back.
func endWith(walk context.Context) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("EndWithWalk",
			func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				defer context.AfterFunc(walk, cancel)()
				return next.HandleInitialize(ctx, in)
			}), middleware.Before)
	}
}

// explain says what was tried and what to do.
func (ch *chain) explain(err error, provider aws.CredentialsProvider) error {
	var (
		missing config.SharedConfigProfileNotExistError
		process *processcreds.ProviderError
		out     = &CredentialsError{Err: err, Tried: tried(provider)}
	)
	switch {
	case errors.As(err, &missing):
		out.Err = fmt.Errorf("there is no profile %q", missing.Profile)
		out.Cure = "name one that `aws configure list-profiles` shows with --aws-profile or AWS_PROFILE"
	case errors.As(err, &process):
		// The SDK quotes what the process printed: credentials, maybe. None of it goes on.
		out.Err = errors.New("the process did not print one valid document")
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out.Err = errors.New("the process failed: " + exit.String())
		}
		out.Cure = "run the credential_process of " + ch.profile() + " by hand"
	case hasSource(provider, aws.CredentialSourceProcess): // it took too long
		out.Cure = "run the credential_process of " + ch.profile() + " by hand"
	case hasSource(provider, aws.CredentialSourceSSO, aws.CredentialSourceSSOLegacy, aws.CredentialSourceLogin):
		out.Cure = "run `aws sso login" + ch.profileFlag() + "` (or `aws login`)"
	case provider == nil:
		out.Cure = "check the AWS configuration of " + ch.profile()
	default:
		out.Cure = "set --aws-profile or AWS_PROFILE, or see what `aws sts get-caller-identity" + ch.profileFlag() + "` says"
	}
	return out
}

func (ch *chain) profile() string {
	if ch.o.Profile == "" {
		return "the default profile"
	}
	return fmt.Sprintf("profile %q", ch.o.Profile)
}

func (ch *chain) profileFlag() string {
	if ch.o.Profile == "" {
		return ""
	}
	return " --profile " + ch.o.Profile
}

func sources(p aws.CredentialsProvider) []aws.CredentialSource {
	if s, ok := p.(aws.CredentialProviderSource); ok {
		return s.ProviderSources()
	}
	return nil
}

func hasSource(p aws.CredentialsProvider, any ...aws.CredentialSource) bool {
	for _, s := range sources(p) {
		for _, want := range any {
			if s == want {
				return true
			}
		}
	}
	return false
}

// tried names the links of the chain up to the one that failed. The chain stops at the
// first link that is configured; only its last one is reached by configuring none.
func tried(p aws.CredentialsProvider) []string {
	if p == nil {
		return nil
	}
	if hasSource(p, aws.CredentialSourceIMDS) {
		return []string{"environment", "shared files", "SSO", "credential process", "web identity", "container", "instance metadata"}
	}
	var names []string
	for _, s := range sources(p) {
		if name := sourceName(s); name != "" && !strings.Contains(strings.Join(names, ","), name) {
			names = append(names, name)
		}
	}
	return names
}

func sourceName(s aws.CredentialSource) string {
	switch s {
	case aws.CredentialSourceEnvVars:
		return "environment"
	case aws.CredentialSourceEnvVarsSTSWebIDToken, aws.CredentialSourceProfileSTSWebIDToken, aws.CredentialSourceSTSAssumeRoleWebID:
		return "web identity"
	case aws.CredentialSourceProfile, aws.CredentialSourceProfileSourceProfile, aws.CredentialSourceProfileNamedProvider:
		return "shared files"
	case aws.CredentialSourceProfileProcess, aws.CredentialSourceProcess:
		return "credential process"
	case aws.CredentialSourceProfileSSO, aws.CredentialSourceSSO, aws.CredentialSourceProfileSSOLegacy, aws.CredentialSourceSSOLegacy:
		return "SSO"
	case aws.CredentialSourceProfileLogin, aws.CredentialSourceLogin:
		return "aws login"
	case aws.CredentialSourceSTSAssumeRole:
		return "assumed role"
	case aws.CredentialSourceHTTP:
		return "container"
	case aws.CredentialSourceIMDS:
		return "instance metadata"
	}
	return ""
}
