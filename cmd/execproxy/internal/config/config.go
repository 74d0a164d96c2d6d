// Package config is what one proxy is told: which API server it stands in front
// of, who it is there, where it listens and how long it lives.
//
// Four places may say it. Flags win over the environment, the environment over
// the file, the file over the kubeconfig's exec extension. Every one of them is
// decoded strictly by the same table of fields (see Fields), so that a name
// means the same everywhere and a typing error is an error that names the
// field.
package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// The ways to authenticate to the API server that this build knows.
const (
	AuthMTLS    = "mtls"
	AuthSigV4   = "sigv4"
	AuthHeaders = "headers"

	// AuthExec chains another exec credential plugin behind the proxy, AuthEKSToken
	// sends what `aws eks get-token` would print.
	AuthExec     = "exec"
	AuthEKSToken = "eks-token"
)

// When a chained plugin may speak with the user, in the kubeconfig's words.
const (
	InteractiveNever       = "Never"
	InteractiveIfAvailable = "IfAvailable"
	InteractiveAlways      = "Always"
)

// What to do with a request that carries an Authorization of its own.
const (
	Reject      = "reject"
	Passthrough = "passthrough"
)

// How the daemon renews the key's certificate.
const (
	RenewOff     = "off"
	RenewSameKey = "same-key"
	RenewNewKey  = "new-key"
)

// Defaults of the fields that have one.
const (
	DefaultIdleTimeout       = 5 * time.Minute
	DefaultDirectIdleTimeout = 15 * time.Minute
	DefaultDrainTimeout      = 10 * time.Second
	DefaultAWSService        = "eks"
)

// Cluster is the upstream API server.
type Cluster struct {
	Server                   string `json:"server,omitempty"`
	CertificateAuthority     string `json:"certificateAuthority,omitempty"` // path
	CertificateAuthorityData []byte `json:"certificateAuthorityData,omitempty"`
	TLSServerName            string `json:"tlsServerName,omitempty"`
	InsecureSkipTLSVerify    bool   `json:"insecureSkipTlsVerify,omitempty"`
	ProxyURL                 string `json:"proxyUrl,omitempty"`
	DisableCompression       bool   `json:"disableCompression,omitempty"`
}

// Identity is who the proxy is towards the API server.
type Identity struct {
	Auth            string   `json:"auth,omitempty"`
	Key             string   `json:"key,omitempty"`
	Cert            string   `json:"cert,omitempty"`
	Headers         []string `json:"headers,omitempty"`
	AWSRegion       string   `json:"awsRegion,omitempty"`
	AWSService      string   `json:"awsService,omitempty"`
	AWSProfile      string   `json:"awsProfile,omitempty"`
	AWSRoleARN      string   `json:"awsRoleArn,omitempty"`
	AWSExternalID   string   `json:"awsExternalId,omitempty"`
	UnsignedPayload bool     `json:"unsignedPayload,omitempty"`
	SignTarget      bool     `json:"signTarget,omitempty"`
	EKSCluster      string   `json:"eksCluster,omitempty"`

	ExecCommand            string   `json:"execCommand,omitempty"`
	ExecArgs               []string `json:"execArgs,omitempty"`
	ExecEnv                []string `json:"execEnv,omitempty"` // NAME=VALUE
	ExecAPIVersion         string   `json:"execApiVersion,omitempty"`
	ExecInteractiveMode    string   `json:"execInteractiveMode,omitempty"`
	ExecProvideClusterInfo bool     `json:"execProvideClusterInfo,omitempty"`

	PINSource    string        `json:"pinSource,omitempty"`
	PKCS11Module string        `json:"pkcs11Module,omitempty"`
	TPMDevice    string        `json:"tpmDevice,omitempty"`
	Renew        string        `json:"renew,omitempty"`
	RenewBefore  time.Duration `json:"renewBefore,omitempty"`
	SignerName   string        `json:"signerName,omitempty"`

	// KeyPEM and CertPEM hold a pair that came inline in a kubeconfig. They
	// live in the memory of this process only: no field sets them, and they
	// are never passed on.
	KeyPEM  []byte `json:"-"`
	CertPEM []byte `json:"-"`
}

// Config is everything one proxy is told. Its zero value, validated, gets the
// defaults.
type Config struct {
	Cluster
	Identity

	Listen               []string      `json:"listen,omitempty"`
	Socket               string        `json:"socket,omitempty"`
	LockFile             string        `json:"lockFile,omitempty"`
	Foreground           bool          `json:"foreground,omitempty"`
	Direct               bool          `json:"direct,omitempty"` // no field sets it: only the command line may ask for what the API server accepts
	IdleTimeout          time.Duration `json:"idleTimeout,omitempty"`
	DrainTimeout         time.Duration `json:"drainTimeout,omitempty"`
	ForeignAuthorization string        `json:"foreignAuthorization,omitempty"`
	KubeconfigOut        string        `json:"kubeconfigOut,omitempty"`
	MetricsAddress       string        `json:"metricsAddress,omitempty"`
	LogLevel             string        `json:"logLevel,omitempty"`
	LogFile              string        `json:"logFile,omitempty"`
	LogFormat            string        `json:"logFormat,omitempty"`
	File                 string        `json:"-"`

	// Of one call of the plugin; a daemon is not told.
	ExtensionPolicy string `json:"-"`
	Provider        string `json:"-"`
}

// A FieldError says which field is wrong, where it was said, and what to do.
type FieldError struct {
	Source string // "flag", "environment", "file …", "exec extension"; empty where the sum of all is meant
	Field  string
	Err    error
}

func (e *FieldError) Error() string {
	if e.Source == "" {
		return fmt.Sprintf("%s: %v", e.Field, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Source, e.Field, e.Err)
}

func (e *FieldError) Unwrap() error { return e.Err }

// Sources are the places that a Config is read from, each optional.
type Sources struct {
	Flags     func(*Config) error         // sets what was given on the command line, last
	Environ   func(string) (string, bool) // os.LookupEnv
	File      string                      // --config, as given on the command line; EXECPROXY_CONFIG otherwise
	Extension json.RawMessage             // spec.cluster.config of KUBERNETES_EXEC_INFO
	Handed    bool                        // a client handed Extension on: extension-policy says what it may say
	Dir       string                      // relative paths of flags and environment are relative to it
}

// Load reads all sources, weakest first.
func Load(s Sources) (*Config, error) {
	c, err := s.call()
	if err != nil {
		return nil, err
	}
	if err := c.applyExtension(s.Extension); err != nil {
		return nil, err
	}
	file, said := s.File, "flag"
	if file == "" && s.Environ != nil {
		file, _ = s.Environ("EXECPROXY_CONFIG")
		said = "environment"
	}
	if file == "" {
		file, said = c.File, "exec extension"
	}
	if file != "" {
		if !filepath.IsAbs(file) {
			if said == "exec extension" {
				return nil, &FieldError{said, "config", fmt.Errorf("%s is a relative path; write it absolute, a plugin has no directory of its own", file)}
			}
			file = filepath.Join(s.Dir, file)
		}
		if err := c.applyFile(file); err != nil {
			return nil, err
		}
		c.File = file
	}
	if s.Environ != nil {
		if err := c.applyEnviron(s.Environ, s.Dir); err != nil {
			return nil, err
		}
	}
	if s.Flags != nil {
		if err := s.Flags(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// applyFile reads a ProxyConfiguration.
func (c *Config) applyFile(path string) error {
	source := "file " + path
	data, err := readSmall(path)
	if err != nil {
		return fmt.Errorf("reading the configuration: %w; correct --config, EXECPROXY_CONFIG or the exec extension's config", err)
	}
	doc, err := decodeYAML(data)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	for name, want := range map[string]string{"apiVersion": APIVersion, "kind": Kind} {
		var got string
		if err := json.Unmarshal(doc[name], &got); err != nil || got != want {
			return &FieldError{source, name, fmt.Errorf("must be %s", want)}
		}
		delete(doc, name)
	}
	return c.applyDocument(source, doc, filepath.Dir(path))
}

const maxFile = 1 << 20

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	n, err := b.ReadFrom(limit(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if n > maxFile {
		return nil, fmt.Errorf("%s is larger than 1 MiB; it cannot be a configuration", path)
	}
	return b.Bytes(), nil
}
