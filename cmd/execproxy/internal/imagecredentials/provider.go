package imagecredentials

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/imagecredentials/credhelper"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/imagecredentials/ecr"
)

// RoleAnnotation is the service account annotation that names the role whose
// credentials pull its pods' images, as ECR's own provider has it.
const RoleAnnotation = "eks.amazonaws.com/ecr-role-arn"

// Fallback decides who pulls for a service account that names no role.
type Fallback string

// Nobody, or the node.
const (
	FallbackNever Fallback = "never"
	FallbackNode  Fallback = "node"
)

// How long answers are good. kubelet keeps one for as long as it is told, also when
// the registry refuses it, so that is short whatever a token's own life.
const (
	maxFresh    = 15 * time.Minute
	keepNothing = time.Minute // that there is nothing for an image
)

// Options configure a Provider.
type Options struct {
	Configuration string   // path of an ImageCredentialConfiguration; "": none. Read for each request
	Fallback      Fallback // "": FallbackNever
	RoleARN       string   // of service accounts that name none; "": Fallback decides
	ECR           TokenSource
	Logger        *slog.Logger     // nil: silence
	Clock         func() time.Time // nil: time.Now
}

// A TokenSource is [ecr.Client].
type TokenSource interface {
	Token(context.Context, ecr.Host, ecr.Identity) (ecr.Token, error)
}

// A Provider answers requests. Its methods may be called concurrently.
type Provider struct {
	o     Options
	log   *slog.Logger
	cache cache
}

// New makes a provider, and fails with what is wrong with its options.
func New(o Options) (*Provider, error) {
	switch o.Fallback {
	case "":
		o.Fallback = FallbackNever
	case FallbackNever, FallbackNode:
	default:
		return nil, fmt.Errorf("fall-back %q is neither %s nor %s", o.Fallback, FallbackNever, FallbackNode)
	}
	if o.RoleARN != "" {
		if err := ecr.CheckRoleARN(o.RoleARN); err != nil {
			return nil, fmt.Errorf("AWS_ECR_ROLE_ARN: %w", err)
		}
	}
	if o.Configuration != "" {
		if _, err := ReadConfiguration(o.Configuration); err != nil {
			return nil, err
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return &Provider{o: o, log: o.Logger, cache: cache{clock: o.Clock}}, nil
}

// Answer says which credentials are for the image. A registry that nobody told us
// about, and that is not ECR's, gets none, and no source is asked.
func (p *Provider) Answer(ctx context.Context, r *Request) (*Answer, error) {
	im, err := ParseImage(r.Image)
	if err != nil {
		return nil, err
	}
	c := &Configuration{}
	if p.o.Configuration != "" {
		if c, err = ReadConfiguration(p.o.Configuration); err != nil {
			return nil, err
		}
	}
	rule, whole := c.rule(im)
	log := p.log.With("registry", im.Registry())
	host, isECR := ecr.Host{}, false
	if im.Port == "" || im.Port == "443" {
		host, isECR = ecr.ParseHost(im.Host)
	}
	if rule == nil && c.DockerConfig != "" {
		helper, err := credhelper.Helper(c.DockerConfig, im.Registry())
		if err != nil {
			return nil, err
		}
		if helper != "" {
			rule = &Rule{Helper: helper, keep: defaultKeep}
		}
	}
	var (
		auth  AuthConfig
		until time.Time
	)
	switch {
	case rule != nil:
		auth, until, err = p.byRule(ctx, im, rule)
		if errors.Is(err, credhelper.ErrNotFound) {
			log.Info("no credentials", "because", "docker-credential-"+rule.Helper+" has none")
			return nothing(), nil
		}
	case isECR:
		who, e := p.identity(r)
		if e != nil {
			return nil, e
		}
		auth, until, err = p.byECR(ctx, host, who)
	default:
		log.Info("no credentials", "because", "nothing is configured for this registry, and it is not ECR")
		return nothing(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", im.Registry(), err)
	}
	a := &Answer{CacheKeyType: CacheRegistry, CacheDuration: max(0, until.Sub(p.o.Clock())).Round(time.Second), Auth: map[string]AuthConfig{im.key(): auth}}
	if !whole || rule != nil && rule.pattern.path != "" {
		// kubelet takes what it kept for a registry for all that the registry has.
		a.CacheKeyType = CacheImage
		a.Auth = map[string]AuthConfig{ruleKey(im, rule): auth}
	}
	log.Info("credentials", "for", a.CacheDuration.Truncate(time.Second), "serviceAccount", r.ServiceAccountToken != "")
	return a, nil
}

// nothing is the answer that there are no credentials: about this image, since of
// another one from there a helper may know some.
func nothing() *Answer { return &Answer{CacheKeyType: CacheImage, CacheDuration: keepNothing} }

// ruleKey ends a path in a slash: to kubelet it is a prefix of any text.
func ruleKey(im Image, rule *Rule) string {
	if rule == nil || rule.pattern.path == "" || im.implied {
		return im.key()
	}
	key := im.key() + "/" + rule.pattern.path
	if im.Path != rule.pattern.path {
		key += "/"
	}
	return key
}

// identity decides who asks ECR. A token says that kubelet lets service accounts
// pull for themselves: then the node's identity, which may pull more, is a choice
// that somebody has to make.
func (p *Provider) identity(r *Request) (ecr.Identity, error) {
	if r.ServiceAccountToken == "" {
		return ecr.Identity{}, nil
	}
	role, said := r.ServiceAccountAnnotations[RoleAnnotation]
	if !said {
		role = p.o.RoleARN
	}
	if role != "" || said {
		if err := ecr.CheckRoleARN(role); err != nil {
			return ecr.Identity{}, fmt.Errorf("the service account's annotation %s: %w", RoleAnnotation, err)
		}
		return ecr.Identity{RoleARN: role, Token: r.ServiceAccountToken}, nil
	}
	if p.o.Fallback == FallbackNode {
		return ecr.Identity{}, nil
	}
	return ecr.Identity{}, fmt.Errorf("the pod's service account names no role in its annotation %s; add it, or let such pods pull as the node with --service-account-fallback node", RoleAnnotation)
}

func (p *Provider) byECR(ctx context.Context, h ecr.Host, who ecr.Identity) (AuthConfig, time.Time, error) {
	// A token of ECR is good for every registry of its region that the identity may
	// read; accounts make no difference, endpoints do.
	name := fmt.Sprintf("ecr %s %t %t %t %s", h.Region, h.Public, h.FIPS, h.DualStack, who.Key())
	return p.cache.get(ctx, name, func(ctx context.Context) (grant, error) {
		t, err := p.o.ECR.Token(ctx, h, who)
		if err != nil {
			p.log.Warn("no token from ECR", "region", h.Region, "public", h.Public, "role", who.RoleARN, "error", err)
			return grant{}, err
		}
		p.log.Info("token from ECR", "region", h.Region, "public", h.Public, "role", who.RoleARN, "expires", t.Expires)
		now := p.o.Clock()
		g := grant{auth: AuthConfig{Username: t.Username, Password: t.Password}, fresh: now}
		if !t.Expires.IsZero() {
			g.fresh = now.Add(min(maxFresh, t.Expires.Sub(now)/2))
			if who.RoleARN == "" { // a pod's token may be revoked, and nobody tells us
				g.valid = t.Expires
			}
		}
		return g, nil
	}, func(err error) bool {
		var e *ecr.Error
		return !errors.As(err, &e) || e.Refused
	})
}

func (p *Provider) byRule(ctx context.Context, im Image, rule *Rule) (AuthConfig, time.Time, error) {
	now := p.o.Clock()
	if rule.PasswordFile != "" {
		password, err := readPassword(rule.PasswordFile)
		return AuthConfig{Username: rule.Username, Password: password}, now.Add(rule.keep), err
	}
	name := fmt.Sprintf("helper %s %s", rule.Helper, im.Registry())
	if rule.Exec != nil {
		name = fmt.Sprintf("exec %q %q", append([]string{rule.Exec.Command}, rule.Exec.Args...), rule.Username)
	}
	return p.cache.get(ctx, name, func(ctx context.Context) (grant, error) {
		auth := AuthConfig{Username: rule.Username}
		var err error
		if rule.Exec != nil {
			auth.Password, err = runCommand(ctx, rule.Exec)
		} else {
			auth.Username, auth.Password, err = credhelper.Get(ctx, rule.Helper, im.Registry())
		}
		if err != nil {
			return grant{}, err
		}
		return grant{auth: auth, fresh: p.o.Clock().Add(rule.keep)}, nil
	}, func(error) bool { return true })
}
