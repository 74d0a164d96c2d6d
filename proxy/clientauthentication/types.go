// Package clientauthentication is the wire format between a Kubernetes client and an
// exec credential plugin: the ExecCredential of client.authentication.k8s.io/v1 and
// v1beta1, with the two fields that KEP-2718 adds for plugins that go on running as a
// proxy, spec.lockFilePath and status.proxyConfig.
//
// A plugin reads what the environment variable KUBERNETES_EXEC_INFO holds with
// [DecodeInfo], sets a [Status] and prints what [ExecCredential.Encode] returns. A
// client does the reverse: [ExecCredential.EncodeInfo] and [DecodeAnswer].
//
// What the KEP leaves open is decided so:
//
//   - The answer is exactly one JSON document and a newline, in the version that was
//     asked for. No field is null or empty: some clients turn an empty token into an
//     empty bearer.
//   - spec.lockFilePath says that the client speaks the protocol. Clients that do not
//     send it know nothing of proxyConfig.
//   - proxyConfig.url is unix:// and an absolute path. Over that socket the client
//     speaks HTTPS for the server's own URL and name, verifies the proxy's certificate
//     against certificate-authority-data, and presents the pair of the same answer.
//   - Beside a proxyConfig there is no token: whatever the API server itself would
//     accept is not given to a client that has a proxy.
//
// Fields that are not known are ignored, so that clients of tomorrow are understood.
// Errors never repeat what was read; it may hold secrets.
package clientauthentication

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	V1      = "client.authentication.k8s.io/v1"
	V1Beta1 = "client.authentication.k8s.io/v1beta1"

	// Kind is the kind of every document. .NET's client asks with kind
	// ExecCredentials, which DecodeInfo accepts and turns into this one.
	Kind = "ExecCredential"

	// InfoVariable is the environment variable by which a client asks.
	InfoVariable = "KUBERNETES_EXEC_INFO"
)

// An ExecCredential is what a client asks with (Spec) and what a plugin answers
// (Status).
type ExecCredential struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Spec       Spec    `json:"spec,omitzero"`
	Status     *Status `json:"status,omitempty"`
}

// A Spec is what the client tells its plugin.
type Spec struct {
	// Cluster is nil unless the kubeconfig says provideClusterInfo: true.
	Cluster *Cluster `json:"cluster,omitempty"`

	// Interactive says that stdin and the terminal may be used. A client that does
	// not send it means false.
	Interactive bool `json:"interactive"`

	// LockFilePath is a file that the client holds an exclusive lock on for as long
	// as it wants the proxy (KEP-2718). Empty: the client does not know proxies.
	LockFilePath string `json:"lockFilePath,omitempty"`
}

// A Cluster is the cluster to authenticate to, as the client's kubeconfig has it.
type Cluster struct {
	Server                   string `json:"server"`
	TLSServerName            string `json:"tls-server-name,omitempty"`
	InsecureSkipTLSVerify    bool   `json:"insecure-skip-tls-verify,omitempty"`
	CertificateAuthorityData []byte `json:"certificate-authority-data,omitempty"` // PEM
	ProxyURL                 string `json:"proxy-url,omitempty"`
	DisableCompression       bool   `json:"disable-compression,omitempty"`

	// Config is the cluster's extension named client.authentication.k8s.io/exec, as
	// it was sent; nil when there is none or it is null.
	Config json.RawMessage `json:"config,omitempty"`
}

// A Status is the credential. Zero fields are absent ones.
type Status struct {
	// ExpirationTimestamp is when the client should ask again; seconds count.
	ExpirationTimestamp time.Time `json:"expirationTimestamp,omitzero"`

	Token                 string `json:"token,omitempty"`
	ClientCertificateData string `json:"clientCertificateData,omitempty"` // PEM
	ClientKeyData         string `json:"clientKeyData,omitempty"`         // PEM

	// ProxyConfig is where requests go (KEP-2718); nil: to the cluster itself.
	ProxyConfig *ProxyConfig `json:"proxyConfig,omitempty"`
}

// A ProxyConfig says where the proxy listens and how to know it (KEP-2718).
type ProxyConfig struct {
	URL                      string `json:"url"`                        // unix:///absolute/path
	CertificateAuthorityData []byte `json:"certificate-authority-data"` // PEM
}

// SocketURL returns the URL of a Unix socket, for [ProxyConfig]. The path must be
// absolute.
func SocketURL(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("socket path %q is not absolute", path)
	}
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/…
	}
	return (&url.URL{Scheme: "unix", Path: path}).String(), nil
}

// SocketPath returns the path of the socket that URL names.
func (p *ProxyConfig) SocketPath() (string, error) {
	const cure = "it must be unix:// and an absolute path, as in unix:///run/user/1000/proxy.sock"
	u, err := url.Parse(p.URL)
	if err != nil {
		return "", errors.New("proxyConfig.url is not a URL: " + cure)
	}
	switch {
	case u.Scheme != "unix":
		return "", errors.New("proxyConfig.url has another scheme than unix: " + cure)
	case u.Host != "" || u.Opaque != "" || u.User != nil || len(u.Path) < 2 || u.Path[0] != '/':
		return "", errors.New("proxyConfig.url has no absolute path: " + cure)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.ContainsRune(u.Path, 0):
		return "", errors.New("proxyConfig.url has more in it than a path: " + cure)
	}
	path := u.Path
	if runtime.GOOS == "windows" {
		path = filepath.FromSlash(strings.TrimPrefix(path, "/"))
		if !filepath.IsAbs(path) {
			return "", errors.New("proxyConfig.url names no drive: it must be as in unix:///C:/Users/me/proxy.sock")
		}
	}
	return path, nil
}

// String, GoString and LogValue keep secrets out of messages and logs.

func (s Status) String() string {
	var parts []string
	add := func(name string, present bool) {
		if present {
			parts = append(parts, name)
		}
	}
	add("token", s.Token != "")
	add("clientCertificateData", s.ClientCertificateData != "")
	add("clientKeyData", s.ClientKeyData != "")
	if s.ProxyConfig != nil {
		parts = append(parts, "proxyConfig "+s.ProxyConfig.URL)
	}
	if !s.ExpirationTimestamp.IsZero() {
		parts = append(parts, "expirationTimestamp "+s.ExpirationTimestamp.Format(time.RFC3339))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func (s Status) GoString() string { return "clientauthentication.Status" + s.String() }

func (s Status) LogValue() slog.Value { return slog.StringValue(s.String()) }

func (c ExecCredential) String() string {
	var parts []string
	if c.Spec.Cluster != nil {
		parts = append(parts, "cluster "+c.Spec.Cluster.Server)
	}
	if c.Spec.LockFilePath != "" {
		parts = append(parts, "lockFilePath "+c.Spec.LockFilePath)
	}
	if c.Status != nil {
		parts = append(parts, "status "+c.Status.String())
	}
	return c.APIVersion + " " + c.Kind + " {" + strings.Join(parts, ", ") + "}"
}

func (c ExecCredential) GoString() string { return c.String() }

func (c ExecCredential) LogValue() slog.Value { return slog.StringValue(c.String()) }
