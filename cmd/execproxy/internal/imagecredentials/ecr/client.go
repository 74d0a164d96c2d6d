package ecr

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ecr"
	"github.com/aws/aws-sdk-go-v2/service/ecrpublic"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"

	"github.com/execproxy/execproxy/signer/sigv4"
)

// attemptTimeout bounds one attempt of one call; the SDK makes up to three.
const attemptTimeout = 10 * time.Second

// sessionName is what AWS's audit log calls us under an assumed role.
const sessionName = "execproxy-image-credentials"

// A Token is what a registry of ECR takes as user name and password.
type Token struct {
	Username string
	Password string
	Expires  time.Time // zero: not told
}

// String keeps the password out of whatever prints it.
func (Token) String() string { return "ecr token (not shown)" }

// GoString is String.
func (t Token) GoString() string { return t.String() }

// An Identity is who asks: the node, or a role that a service account's token
// may assume.
type Identity struct {
	RoleARN string // "": the node's own
	Token   string // the service account's, of the role
}

// Key tells identities apart without holding anything secret. A token is part of
// it: what one service account proved is no answer for another one.
func (i Identity) Key() string {
	if i.RoleARN == "" {
		return "node"
	}
	sum := sha256.Sum256([]byte(i.Token))
	return i.RoleARN + " " + hex.EncodeToString(sum[:])
}

var roleARN = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]{1,576}$`)
})

// CheckRoleARN refuses what is no role.
func CheckRoleARN(arn string) error {
	if !roleARN().MatchString(arn) {
		return fmt.Errorf("%.100q is not a role; write arn:aws:iam::ACCOUNT:role/NAME", arn)
	}
	return nil
}

// A Client gets tokens. The node's AWS credentials are looked up once and kept
// fresh.
type Client struct {
	log  *slog.Logger
	http *awshttp.BuildableClient
	sdk  []func(*config.LoadOptions) error // for tests

	loading sync.Mutex
	node    atomic.Pointer[sigv4.Credentials]
}

// NewClient makes a client of the AWS SDK's default chain. It calls nobody yet.
func NewClient(log *slog.Logger, sdk ...func(*config.LoadOptions) error) *Client {
	return &Client{log: log, http: awshttp.NewBuildableClient().WithTimeout(attemptTimeout), sdk: sdk}
}

// An Error is a call to AWS that failed. Refused says that AWS answered, and that
// the answer is no: what was got before must not be used any more either.
type Error struct {
	What    string
	Err     error
	Refused bool
}

func (e *Error) Error() string { return e.What + ": " + reason(e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Token gets a token for a registry.
func (c *Client) Token(ctx context.Context, h Host, who Identity) (Token, error) {
	cfg, err := c.load(ctx, h.Region)
	if err != nil {
		return Token{}, err
	}
	if who.RoleARN != "" {
		if cfg.Credentials, err = assume(ctx, cfg, who); err != nil {
			return Token{}, err
		}
		return ask(ctx, cfg, h)
	}
	node, err := c.nodeCredentials(ctx, h.Region)
	if err != nil {
		return Token{}, fmt.Errorf("this node's identity: %w", curable(err))
	}
	cfg.Credentials = node
	t, err := ask(ctx, cfg, h)
	var e *Error
	if errors.As(err, &e) && e.Refused {
		// Keys that do not expire are looked up again for no other reason.
		node.Invalidate()
	}
	return t, err
}

func ask(ctx context.Context, cfg aws.Config, h Host) (Token, error) {
	if h.Public {
		return public(ctx, cfg, h)
	}
	return private(ctx, cfg, h)
}

func (c *Client) load(ctx context.Context, region string) (aws.Config, error) {
	options := []func(*config.LoadOptions) error{
		config.WithRegion(region),
		config.WithHTTPClient(c.http),
		config.WithLogger(logging.Nop{}),
		// Until somebody says who asks, it is nobody.
		config.WithCredentialsProvider(aws.AnonymousCredentials{}),
	}
	cfg, err := config.LoadDefaultConfig(ctx, append(options, c.sdk...)...)
	if err != nil {
		return cfg, fmt.Errorf("reading the AWS configuration: %w; see AWS_PROFILE and AWS_CONFIG_FILE in the env of kubelet's CredentialProviderConfig", err)
	}
	return cfg, nil
}

// nodeCredentials are kept for all registries and regions: they are the node's.
func (c *Client) nodeCredentials(ctx context.Context, region string) (*sigv4.Credentials, error) {
	c.loading.Lock()
	defer c.loading.Unlock()
	if node := c.node.Load(); node != nil {
		return node, nil
	}
	node, err := sigv4.LoadCredentials(ctx, sigv4.CredentialsOptions{
		SessionName: sessionName, Timeout: attemptTimeout, Logger: c.log,
		// A web identity or a role chain needs some region for STS.
		SDK: append([]func(*config.LoadOptions) error{config.WithDefaultRegion(region)}, c.sdk...),
	})
	if err != nil {
		return nil, err
	}
	c.node.Store(node)
	return node, nil
}

// curable is the error with a cure that whoever configures kubelet has: there are no
// flags for the identity here.
func curable(err error) error {
	var e *sigv4.CredentialsError
	if !errors.As(err, &e) || !strings.Contains(e.Cure, "--aws-") {
		return err
	}
	ours := *e
	ours.Cure = "give the node a role, or set AWS_PROFILE or its like in the env of kubelet's CredentialProviderConfig"
	return &ours
}

// Name is who the node is: its access key's id, once it is known.
func (c *Client) Name() string {
	node := c.node.Load()
	if node == nil {
		return ""
	}
	return node.String()
}

// assume trades a service account's token for the role's credentials. There is no
// way back to the node's identity from a role that cannot be assumed: the role's
// name comes from whoever may annotate a service account.
func assume(ctx context.Context, cfg aws.Config, who Identity) (aws.CredentialsProvider, error) {
	out, err := sts.NewFromConfig(cfg).AssumeRoleWithWebIdentity(ctx, &sts.AssumeRoleWithWebIdentityInput{
		RoleArn: aws.String(who.RoleARN), RoleSessionName: aws.String(sessionName), WebIdentityToken: aws.String(who.Token),
	})
	if err != nil {
		return nil, failed("assuming "+who.RoleARN+" with the pod's service account token", err)
	}
	k := out.Credentials
	if k == nil || aws.ToString(k.AccessKeyId) == "" || aws.ToString(k.SecretAccessKey) == "" {
		return nil, &Error{What: "assuming " + who.RoleARN, Err: errors.New("STS answered without credentials"), Refused: true}
	}
	creds := aws.Credentials{
		AccessKeyID: *k.AccessKeyId, SecretAccessKey: *k.SecretAccessKey, SessionToken: aws.ToString(k.SessionToken),
		Source: "AssumeRoleWithWebIdentity",
	}
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return creds, nil }), nil
}

func private(ctx context.Context, cfg aws.Config, h Host) (Token, error) {
	client := ecr.NewFromConfig(cfg, func(o *ecr.Options) {
		if o.BaseEndpoint != nil { // AWS_ENDPOINT_URL_ECR and its like say it all
			o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = aws.FIPSEndpointStateDisabled, aws.DualStackEndpointStateDisabled
			return
		}
		if h.FIPS {
			o.EndpointOptions.UseFIPSEndpoint = aws.FIPSEndpointStateEnabled
		}
		if h.DualStack {
			o.EndpointOptions.UseDualStackEndpoint = aws.DualStackEndpointStateEnabled
		}
	})
	out, err := client.GetAuthorizationToken(ctx, &ecr.GetAuthorizationTokenInput{})
	if err != nil {
		return Token{}, failed("asking ECR in "+h.Region+" for a token", err)
	}
	if len(out.AuthorizationData) == 0 {
		return Token{}, failed("asking ECR in "+h.Region+" for a token", errEmpty)
	}
	d := out.AuthorizationData[0]
	return decode(d.AuthorizationToken, d.ExpiresAt)
}

func public(ctx context.Context, cfg aws.Config, h Host) (Token, error) {
	client := ecrpublic.NewFromConfig(cfg, func(o *ecrpublic.Options) {
		// It has no FIPS endpoint, whatever holds for the rest of the node.
		o.EndpointOptions.UseFIPSEndpoint = aws.FIPSEndpointStateDisabled
		switch {
		case o.BaseEndpoint != nil:
			o.EndpointOptions.UseDualStackEndpoint = aws.DualStackEndpointStateDisabled
		case h.DualStack:
			o.EndpointOptions.UseDualStackEndpoint = aws.DualStackEndpointStateEnabled
		}
	})
	out, err := client.GetAuthorizationToken(ctx, &ecrpublic.GetAuthorizationTokenInput{})
	if err != nil {
		return Token{}, failed("asking ECR Public for a token", err)
	}
	if out.AuthorizationData == nil {
		return Token{}, failed("asking ECR Public for a token", errEmpty)
	}
	return decode(out.AuthorizationData.AuthorizationToken, out.AuthorizationData.ExpiresAt)
}

var errEmpty = errors.New("the answer has none")

// decode takes apart base64(user:password). What is wrong with it is not quoted.
func decode(token *string, expires *time.Time) (Token, error) {
	plain, err := base64.StdEncoding.DecodeString(aws.ToString(token))
	if err != nil {
		return Token{}, errors.New("ECR's token is not base64; a newer execproxy may know it")
	}
	user, password, ok := strings.Cut(string(plain), ":")
	if !ok || user == "" || password == "" {
		return Token{}, errors.New("ECR's token is not user:password; a newer execproxy may know it")
	}
	t := Token{Username: user, Password: password}
	if expires != nil {
		t.Expires = *expires
		if !time.Now().Before(t.Expires) {
			return Token{}, errors.New("ECR's token has expired already; set this node's clock")
		}
	}
	return t, nil
}

// failed says what AWS said. An answer of the 4xx kind is a refusal, but for being
// asked too often.
func failed(what string, err error) error {
	var resp *awshttp.ResponseError
	e := &Error{What: what, Err: err}
	if errors.As(err, &resp) {
		code := resp.HTTPStatusCode()
		e.Refused = code >= 400 && code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout
		var api smithy.APIError
		if errors.As(err, &api) && strings.Contains(api.ErrorCode(), "Throttl") {
			e.Refused = false
		}
	}
	return e
}

// reason is AWS's code and words, or else what happened on the way.
func reason(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode() + ": " + api.ErrorMessage()
	}
	return err.Error()
}
