package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/keyhome"
	"github.com/execproxy/execproxy/proxy"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/header"
	"github.com/execproxy/execproxy/signer/sigv4"
	"github.com/execproxy/execproxy/signer/token"
)

// identity is who the proxy is towards the API server: a key that answers for
// connections, or a signer that answers for requests.
type identity struct {
	config     *config.Config
	homes      keyhome.Options
	log        *slog.Logger
	warnings   []string
	signer     signer.RequestSigner // nil with mtls
	creds      *sigv4.Credentials   // of sigv4
	bearer     *bearer              // of exec and eks-token
	signatures atomic.Uint64        // of the signer; the transport counts those of keys

	mu     sync.Mutex
	key    *keyhome.Key     // of mtls
	pair   *tls.Certificate // of exec, where its plugin hands out one
	meters []*keyMeter      // of all keys that key ever was
	who    string

	reopened uint64 // of the keys before; guarded by mu

	changing sync.Mutex // one key comes into use at a time
	unstored bool       // the key in use could not be stored; guarded by changing

	look chan struct{} // the key's home may hold something else
}

// credentialsTimeout bounds the first look for AWS credentials, in which the
// whole chain is asked.
const credentialsTimeout = 15 * time.Second

// keyTimeout bounds the opening of a key: less than a plugin waits for us.
const keyTimeout = 20 * time.Second

// newIdentity opens what the configuration names and fails with what is wrong
// with it. Credentials are fetched once, so that a plugin fails instead of every
// request.
func newIdentity(ctx context.Context, c *config.Config, homes keyhome.Options, given *clientauthentication.Status, log *slog.Logger) (*identity, error) {
	homes.Logger = log
	id := &identity{config: c, homes: homes, log: log, look: make(chan struct{}, 1)}
	switch c.Auth {
	case config.AuthMTLS:
		if err := homes.Ready(ctx, c); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, keyTimeout)
		defer cancel()
		key, err := keyhome.Open(ctx, c, homes)
		if err != nil {
			return nil, err
		}
		id.warnings = key.Warnings()
		id.setKey(key)
	case config.AuthHeaders:
		s, err := header.New(c.Headers)
		if err != nil {
			return nil, err
		}
		id.signer = s
		names := make([]string, 0, len(c.Headers))
		for _, h := range c.Headers {
			name, _, _ := strings.Cut(h, "=")
			names = append(names, http.CanonicalHeaderKey(name))
		}
		id.who = strings.Join(names, ",")
	case config.AuthSigV4:
		ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
		defer cancel()
		creds, err := awsCredentials(ctx, c, log)
		if err != nil {
			return nil, err
		}
		region := c.AWSRegion
		if region == "" {
			region = creds.Region()
		}
		s, err := sigv4.New(sigv4.Options{Region: region, Service: c.AWSService, Credentials: creds, BindTarget: c.SignTarget, Logger: log})
		if err != nil {
			return nil, err
		}
		got, err := creds.Retrieve(ctx)
		if err != nil {
			return nil, err
		}
		id.signer, id.creds, id.who = s, creds, got.AccessKeyID
	case config.AuthExec, config.AuthEKSToken:
		b, k, err := newBearer(ctx, c, homes.Environ, given, log)
		if err != nil {
			return nil, err
		}
		id.bearer, id.signer, id.who = b, token.NewSigner(b.cache), bearerName(ctx, c, b)
		id.setPair(k)
	default:
		return nil, fmt.Errorf("auth %q is not in this version", c.Auth)
	}
	return id, nil
}

func awsCredentials(ctx context.Context, c *config.Config, log *slog.Logger) (*sigv4.Credentials, error) {
	return sigv4.LoadCredentials(ctx, sigv4.CredentialsOptions{
		Profile: c.AWSProfile, Region: c.AWSRegion, RoleARN: c.AWSRoleARN, ExternalID: c.AWSExternalID, Logger: log,
	})
}

// CheckFiles looks at the files that the configuration names, as a proxy that
// starts with it would. What needs a PIN is left for then.
func CheckFiles(c *config.Config) error {
	if c.Auth == config.AuthMTLS {
		if err := keyhome.CheckFiles(c); err != nil {
			return err
		}
	}
	if c.Auth == config.AuthHeaders {
		if _, err := header.New(c.Headers); err != nil {
			return err
		}
	}
	if c.Auth == config.AuthExec {
		if _, err := exec.LookPath(c.ExecCommand); err != nil {
			return &config.FieldError{Field: "exec-command", Err: fmt.Errorf("%w; install it, or name it by its full path", err)}
		}
	}
	_, err := rootCAs(c)
	return err
}

// name says who we are in words that are no secret: a certificate's subject, an
// access key's id, the names of headers.
func (id *identity) name() string {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.who
}

// watch keeps the identity fresh until ctx ends. changed is called when the next
// connections have to be made with another key.
func (id *identity) watch(ctx context.Context, changed func() error) {
	switch {
	case id.bearer != nil:
		err := id.bearer.run(ctx, func(k *token.Credential) {
			if id.setPair(k) {
				_ = changed() // it has logged why
			}
		})
		if err != nil && ctx.Err() == nil {
			id.log.Error("the credential is no longer refreshed", "error", err)
		}
	case id.creds != nil:
		if err := id.creds.Run(ctx); err != nil && ctx.Err() == nil {
			id.log.Error("credentials are no longer refreshed", "error", err)
		}
	case id.config.Key != "":
		id.watchKey(ctx, changed)
	}
}

// sign is the proxy's last step. It is nil where the certificate authenticates.
func (id *identity) sign() func(context.Context, *proxy.Request) (http.Header, error) {
	if id.signer == nil {
		return nil
	}
	return func(ctx context.Context, r *proxy.Request) (http.Header, error) {
		h, err := id.signer.SignRequest(ctx, r)
		if err == nil {
			id.signatures.Add(1)
		}
		return h, err
	}
}

// signFields is sign for those who cannot wait; nil where the signer always may have to.
func (id *identity) signFields() func(*signer.Request, []signer.Field, *signer.Fields) (bool, error) {
	s, ok := id.signer.(signer.FieldSigner)
	if !ok {
		return nil
	}
	return func(r *signer.Request, sent []signer.Field, out *signer.Fields) (bool, error) {
		ok, err := s.SignFields(r, sent, out)
		if ok && err == nil {
			id.signatures.Add(1)
		}
		return ok, err
	}
}

// signs fails where what a request is signed with is not at hand.
func (id *identity) signs(ctx context.Context) error {
	var err error
	switch {
	case id.creds != nil:
		_, err = id.creds.Retrieve(ctx)
	case id.signer != nil: // headers, from files perhaps
		_, err = id.signer.SignRequest(ctx, &signer.Request{})
	}
	return err
}

// hashesBody reports whether the signer binds the body.
func (id *identity) hashesBody() bool {
	b, ok := id.signer.(signer.BodyHasher)
	return ok && b.HashesBody()
}

// refused shows a refusal to a signer that learns from it, and reports whether
// the request is worth signing and sending once more.
func (id *identity) refused() func(*http.Response, time.Duration) bool {
	o, ok := id.signer.(signer.ResponseObserver)
	if !ok {
		return nil
	}
	return func(res *http.Response, took time.Duration) bool {
		if res.StatusCode == http.StatusUnauthorized && id.bearer != nil && id.bearer.creds != nil {
			id.bearer.creds.Invalidate() // who signed the token may be nobody any more
		}
		again := o.ObserveResponse(res.StatusCode, res.Header, time.Now().Add(-took))
		if res.StatusCode == http.StatusUnauthorized && id.creds != nil && !again {
			id.creds.Invalidate()
		}
		return again
	}
}

func (id *identity) close() {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.key != nil {
		_ = id.key.Close()
	}
}
