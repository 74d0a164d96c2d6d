package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// Complete fills in defaults and checks what was said for contradictions.
func (c *Config) Complete() error {
	if c.Server == "" && !c.Direct {
		return &FieldError{"", "server", errors.New("no API server named; set --server, EXECPROXY_SERVER, or upstream.server in the kubeconfig's exec extension (`execproxy kubeconfig` writes it, and sets provideClusterInfo: true, without which no plugin sees it)")}
	}
	if c.Server != "" {
		if err := c.checkCluster(); err != nil {
			return err
		}
	}
	if err := c.checkIdentity(); err != nil {
		return err
	}
	switch c.ForeignAuthorization {
	case "":
		c.ForeignAuthorization = Reject
	case Reject, Passthrough:
	default:
		return &FieldError{"", "foreign-authorization", fmt.Errorf("%q is neither %q nor %q", c.ForeignAuthorization, Reject, Passthrough)}
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = c.standardIdle()
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if _, _, err := c.Listeners(); err != nil {
		return err
	}
	if c.MetricsAddress != "" {
		if _, _, err := net.SplitHostPort(c.MetricsAddress); err != nil {
			return &FieldError{"", "metrics-address", fmt.Errorf("%q is not HOST:PORT, like 127.0.0.1:9090", c.MetricsAddress)}
		}
	}
	return c.checkLog()
}

func (c *Config) checkLog() error {
	switch c.LogFormat {
	case "", "text", "json":
	default:
		return &FieldError{"", "log-format", fmt.Errorf("%q is neither \"text\" nor \"json\"", c.LogFormat)}
	}
	switch strings.ToLower(c.LogLevel) {
	case "", "debug", "info", "warn", "error":
		return nil
	}
	return &FieldError{"", "log-level", fmt.Errorf("%q is none of debug, info, warn, error", c.LogLevel)}
}

func (c *Config) checkCluster() error {
	u, err := ServerURL(c.Server)
	if err != nil {
		return &FieldError{"", "server", err}
	}
	c.Server = u.String()
	if c.InsecureSkipTLSVerify && (c.CertificateAuthority != "" || len(c.CertificateAuthorityData) > 0) {
		return &FieldError{"", "insecure-skip-tls-verify", errors.New("contradicts certificate-authority: a certificate authority that is not asked proves nothing; drop one of the two")}
	}
	if c.ProxyURL != "" {
		p, err := url.Parse(c.ProxyURL)
		if err != nil || p.Host == "" {
			return &FieldError{"", "proxy-url", errors.New("not a URL like http://proxy.example:3128")}
		}
		switch p.Scheme {
		case "http", "https", "socks5", "socks5h":
		default:
			return &FieldError{"", "proxy-url", fmt.Errorf("scheme %q is none of http, https, socks5", p.Scheme)}
		}
	}
	return nil
}

// ServerURL reads an API server's URL. Only https can be authenticated on.
func ServerURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" && u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not a URL like https://prod.example:6443", redactURL(s))
	}
	shown := Shown(u)
	switch {
	case u.Scheme == "http":
		return nil, fmt.Errorf("%s is plain http, over which nothing can be authenticated and clients run no exec plugin; use its https address", shown)
	case u.Scheme != "https":
		return nil, fmt.Errorf("%s: scheme %q is not https", shown, u.Scheme)
	case u.Host == "" || u.Hostname() == "":
		return nil, fmt.Errorf("%s names no host", shown)
	case u.User != nil:
		return nil, fmt.Errorf("%s carries a user name or password; remove it and name an identity with --auth", shown)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%s carries a query or a fragment; remove it", shown)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = strings.TrimRight(u.RawPath, "/")
	u.Host = strings.ToLower(u.Host)
	return u, nil
}

// Shown is a URL for an error: without user name, password, query and fragment,
// in each of which a token may stand.
func Shown(u *url.URL) string {
	s := *u
	s.User, s.RawQuery, s.Fragment, s.RawFragment = nil, "", "", ""
	return s.String()
}

// redactURL drops what stands before an @ of a text that is no URL.
func redactURL(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return "…" + s[i:]
	}
	return s
}

func (c *Config) checkIdentity() error {
	if c.Auth == "" {
		switch {
		case c.Key != "" || c.Cert != "" || len(c.KeyPEM) > 0:
			c.Auth = AuthMTLS
		case len(c.Headers) > 0:
			c.Auth = AuthHeaders
		case c.ExecCommand != "":
			c.Auth = AuthExec
		default:
			return &FieldError{"", "auth", errors.New("no identity named; set --auth mtls with --key and --cert, --auth sigv4, --auth headers with --header, --auth exec with --exec-command, or --auth eks-token with --eks-cluster")}
		}
	}
	switch c.Auth {
	case AuthMTLS, AuthSigV4, AuthHeaders, AuthExec, AuthEKSToken:
	case "http-signature":
		return &FieldError{"", "auth", fmt.Errorf("%q is not in this version; it has mtls, sigv4, headers, exec and eks-token", c.Auth)}
	default:
		return &FieldError{"", "auth", fmt.Errorf("%q is none of mtls, sigv4, headers, exec, eks-token", c.Auth)}
	}
	for _, f := range []struct {
		name string
		set  bool
		auth string
	}{
		{"key", c.Key != "" || len(c.KeyPEM) > 0, AuthMTLS},
		{"cert", c.Cert != "" || len(c.CertPEM) > 0, AuthMTLS},
		{"header", len(c.Headers) > 0, AuthHeaders},
		{"aws-region", c.AWSRegion != "", awsAuth(c.Auth)},
		{"aws-service", c.AWSService != "", AuthSigV4},
		{"aws-profile", c.AWSProfile != "", awsAuth(c.Auth)},
		{"aws-role-arn", c.AWSRoleARN != "", awsAuth(c.Auth)},
		{"aws-external-id", c.AWSExternalID != "", awsAuth(c.Auth)},
		{"unsigned-payload", c.UnsignedPayload, AuthSigV4},
		{"sign-target", c.SignTarget, AuthSigV4},
		{"pin-source", c.PINSource != "", AuthMTLS},
		{"pkcs11-module", c.PKCS11Module != "", AuthMTLS},
		{"tpm-device", c.TPMDevice != "", AuthMTLS},
		{"renew", c.Renew != "" && c.Renew != RenewOff, AuthMTLS},
		{"renew-before", c.RenewBefore != 0, AuthMTLS},
		{"signer-name", c.SignerName != "", AuthMTLS},
		{"eks-cluster", c.EKSCluster != "", AuthEKSToken},
		{"exec-command", c.ExecCommand != "", AuthExec},
		{"exec-arg", len(c.ExecArgs) > 0, AuthExec},
		{"exec-env", len(c.ExecEnv) > 0, AuthExec},
		{"exec-api-version", c.ExecAPIVersion != "", AuthExec},
		{"exec-interactive-mode", c.ExecInteractiveMode != "", AuthExec},
		{"exec-provide-cluster-info", c.ExecProvideClusterInfo, AuthExec},
	} {
		if f.set && f.auth != c.Auth {
			return &FieldError{"", f.name, fmt.Errorf("goes with auth %s, but auth is %s; drop one of the two", f.auth, c.Auth)}
		}
	}
	switch c.Auth {
	case AuthMTLS:
		if c.Key == "" {
			if len(c.KeyPEM) > 0 {
				return nil
			}
			return &FieldError{"", "key", errors.New("auth mtls needs a private key; set --key to a PEM file, pkcs11:… or tpm:…")}
		}
		if err := c.checkKey(); err != nil {
			return err
		}
		return c.CheckCert()
	case AuthExec:
		return c.checkExec()
	case AuthEKSToken:
		if c.EKSCluster == "" {
			return &FieldError{"", "eks-cluster", errors.New("auth eks-token needs the name of the cluster that the token is for; set --eks-cluster as in `aws eks list-clusters`")}
		}
		return c.checkRole()
	case AuthSigV4:
		if err := c.checkRole(); err != nil {
			return err
		}
		if c.AWSService == "" {
			c.AWSService = DefaultAWSService
		}
	case AuthHeaders:
		if len(c.Headers) == 0 {
			return &FieldError{"", "header", errors.New("auth headers needs at least one --header Name=value or Name=@file")}
		}
	}
	return nil
}

func (c *Config) standardIdle() time.Duration {
	if c.Direct { // a token's life is what it is kept for
		return DefaultDirectIdleTimeout
	}
	return DefaultIdleTimeout
}

// awsAuth is the scheme that AWS credentials go with: the one that was said, if it
// uses them.
func awsAuth(auth string) string {
	if auth == AuthEKSToken {
		return AuthEKSToken
	}
	return AuthSigV4
}

func (c *Config) checkRole() error {
	if c.AWSExternalID != "" && c.AWSRoleARN == "" {
		return &FieldError{"", "aws-external-id", errors.New("means something only with aws-role-arn; set it too")}
	}
	return nil
}

// The versions of KEP-541 that a chained plugin may speak.
const (
	DefaultExecAPIVersion = "client.authentication.k8s.io/v1"
	betaExecAPIVersion    = "client.authentication.k8s.io/v1beta1"
)

func (c *Config) checkExec() error {
	if c.ExecCommand == "" {
		return &FieldError{"", "exec-command", errors.New("auth exec needs the exec credential plugin to run; set --exec-command, and --exec-arg for each of its arguments")}
	}
	for _, e := range c.ExecEnv {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			return &FieldError{"", "exec-env", errors.New("want NAME=VALUE")} // what was said may be a secret
		}
	}
	switch c.ExecAPIVersion {
	case "":
		c.ExecAPIVersion = DefaultExecAPIVersion
	case DefaultExecAPIVersion, betaExecAPIVersion:
	default:
		return &FieldError{"", "exec-api-version", fmt.Errorf("%q is neither %s nor %s", c.ExecAPIVersion, DefaultExecAPIVersion, betaExecAPIVersion)}
	}
	switch c.ExecInteractiveMode {
	case "":
		c.ExecInteractiveMode = InteractiveIfAvailable
	case InteractiveNever, InteractiveIfAvailable, InteractiveAlways:
	default:
		return &FieldError{"", "exec-interactive-mode", fmt.Errorf("%q is none of %s, %s, %s", c.ExecInteractiveMode, InteractiveNever, InteractiveIfAvailable, InteractiveAlways)}
	}
	return nil
}

// IdentitySaid reports whether it was said who we are. How the key is unlocked or
// its certificate renewed does not say that.
func (c *Config) IdentitySaid() bool {
	i := c.Identity
	return i.Auth != "" || i.Key != "" || i.Cert != "" || len(i.Headers) > 0 || i.AWSRegion != "" || i.AWSService != "" ||
		i.AWSProfile != "" || i.AWSRoleARN != "" || i.AWSExternalID != "" || i.UnsignedPayload || i.SignTarget ||
		i.EKSCluster != "" || i.ExecCommand != "" || len(i.ExecArgs) > 0 || len(i.ExecEnv) > 0
}

// HeaderFromFile reports whether a header's value stands in a file. With "@@"
// it does not: that is how a value that begins with "@" is written.
func HeaderFromFile(h string) bool {
	_, v, ok := strings.Cut(h, "=")
	return ok && strings.HasPrefix(v, "@") && !strings.HasPrefix(v, "@@")
}
