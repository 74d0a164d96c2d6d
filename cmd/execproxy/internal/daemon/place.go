package daemon

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/proxy/socket"
)

// Places are the two directories of one user: Runtime holds sockets and locks,
// State what outlives a reboot (the loopback authority, logs).
type Places struct {
	Runtime string
	State   string
}

// FindPlaces follows the XDG base directory rules. Without XDG_RUNTIME_DIR the
// sockets live under the state directory: a shared /tmp is no place for them.
func FindPlaces(getenv func(string) string) (Places, error) {
	state := getenv("XDG_STATE_HOME")
	switch {
	case state != "":
		if !filepath.IsAbs(state) {
			return Places{}, fmt.Errorf("XDG_STATE_HOME is %q, which is not absolute; set it to an absolute path or unset it", state)
		}
	case runtime.GOOS == "windows" && getenv("LocalAppData") != "":
		state = getenv("LocalAppData")
	default:
		home := getenv("HOME")
		if home == "" {
			home, _ = os.UserHomeDir()
		}
		if !filepath.IsAbs(home) {
			return Places{}, errors.New("no place for state: neither XDG_STATE_HOME nor HOME is an absolute path; set one of them")
		}
		state = filepath.Join(home, ".local", "state")
	}
	p := Places{State: filepath.Join(state, "execproxy")}
	switch run := getenv("XDG_RUNTIME_DIR"); {
	case run == "":
		p.Runtime = filepath.Join(p.State, "run")
	case !filepath.IsAbs(run):
		return Places{}, fmt.Errorf("XDG_RUNTIME_DIR is %q, which is not absolute; set it to an absolute path or unset it", run)
	default:
		p.Runtime = filepath.Join(run, "execproxy")
	}
	return p, nil
}

// open verifies that a directory is this user's alone, and makes it where it is
// missing. A refusal names the variable that led there: su and sudo hand on those
// of whoever was there before.
func (p Places) open(dir string) (*socket.Dir, error) {
	d, err := socket.OpenDir(dir)
	var unsafe *socket.UnsafeError
	if !errors.As(err, &unsafe) || runtime.GOOS == "windows" {
		return d, err
	}
	below := func(top string) bool { return dir == top || strings.HasPrefix(dir, top+string(filepath.Separator)) }
	variable := ""
	switch {
	case below(p.State):
		variable = "XDG_STATE_HOME, else HOME,"
	case below(p.Runtime):
		variable = "XDG_RUNTIME_DIR"
	default:
		return nil, err // named by a flag
	}
	return nil, fmt.Errorf("%w (%s names it; after su or sudo it may be another user's: set it to your own, or unset it)", err, variable)
}

// Check refuses a directory of sockets that is not this user's alone. None at all
// is fine: nothing was ever started here.
func (p Places) Check() error {
	if _, err := os.Lstat(p.Runtime); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := p.open(p.Runtime)
	return err
}

// Authority is the directory of the loopback authority.
func (p Places) Authority() string { return filepath.Join(p.State, "ca") }

// Sessions is the directory of the sessions that outlive their proxies.
func (p Places) Sessions() string { return filepath.Join(p.State, "session") }

// Log is a detached daemon's log file.
func (p Places) Log(id string) string { return filepath.Join(p.State, "log", id+".log") }

// Socket is a daemon's API socket.
func (p Places) Socket(id string) string { return filepath.Join(p.Runtime, id+".sock") }

// What stands beside an API socket. The control socket has the longest name
// that must fit into a socket address.
func controlPath(socket string) string { return socket + ".ctl" }
func lifePath(socket string) string    { return socket + ".lock" }
func startPath(socket string) string   { return socket + ".start" }

// How long a daemon lives; part of its identity, so that a daemon bound to locks
// never outlives them for the sake of a client that has none.
const (
	lifeLock = "lock"
	lifeIdle = "idle"

	// A daemon that keeps a credential for clients which talk to the API server
	// themselves. No proxy ever hands out one.
	lifeDirect = "direct"

	// These start no daemon and are found by no plugin that did not name them.
	lifeServe = "serve"
	lifeRun   = "run"
)

// identityVariable tells the variables that decide who the AWS SDK says we are;
// the home directory has the shared configuration and credentials.
func identityVariable(name string) bool {
	return strings.HasPrefix(name, "AWS_") || name == "HOME" || name == "USERPROFILE"
}

// wayVariable tells the variables that decide the way to the API server.
func wayVariable(name string) bool {
	name = strings.ToUpper(name)
	return name == "HTTPS_PROXY" || name == "NO_PROXY"
}

// rootsVariable tells the variables that decide whom the system trusts.
func rootsVariable(name string) bool { return name == "SSL_CERT_FILE" || name == "SSL_CERT_DIR" }

// tokenVariable tells the variables that decide which tokens a PKCS#11 library
// shows: those of the usual libraries, and where p11-kit looks for a user's own modules.
func tokenVariable(name string) bool {
	for _, prefix := range []string{"SOFTHSM2_", "P11_KIT_", "PKCS11", "TPM2_PKCS11_", "YUBIHSM_", "OPENSC_", "CKNFAST_", "NFAST_", "Chrystoki"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == "HOME" || name == "XDG_CONFIG_HOME"
}

// variables is what of environ matters. Its order means nothing: callers exist
// that shuffle it.
func variables(environ []string, matters func(name string) bool) []string {
	var out []string
	for _, e := range environ {
		if name, _, _ := strings.Cut(e, "="); matters(name) {
			out = append(out, e)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// settled is environ with its relative paths completed from dir. A daemon has
// another directory: there they would name other files, or none, and with none
// the AWS SDK goes on to whoever else it finds that we are.
func settled(environ []string, dir string) []string {
	out := slices.Clone(environ)
	for i, e := range out {
		name, value, _ := strings.Cut(e, "=")
		switch name {
		case "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CA_BUNDLE",
			"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "SSL_CERT_FILE",
			"SOFTHSM2_CONF", "TPM2_PKCS11_STORE", "YUBIHSM_PKCS11_CONF", "OPENSC_CONF":
			if value != "" && !filepath.IsAbs(value) {
				out[i] = name + "=" + filepath.Join(dir, value)
			}
		}
	}
	return out
}

// ID names the daemon of a cluster, an identity, what in the environment bears
// on either, and a way to live: 16 hexadecimal digits, from which nothing can be
// read back.
func ID(c *config.Config, environ []string, life string) string {
	what := struct {
		Cluster  config.Cluster
		Identity config.Identity
		Policy   string
		Idle     string
		Environ  []string
		Way      []string
		Life     string
		Pair     []byte   `json:",omitempty"` // an inline one's certificate
		Roots    []string `json:",omitempty"`
	}{c.Cluster, c.Identity, c.ForeignAuthorization, c.IdleTimeout.String(), nil, nil, life, c.CertPEM, nil}
	// The AWS SDK makes calls of its own, by way of these and trusting those.
	aws := c.Auth == config.AuthSigV4 || c.Auth == config.AuthEKSToken
	if aws {
		what.Environ = variables(environ, identityVariable)
	}
	if c.Auth == config.AuthExec {
		what.Environ = variables(chainedEnviron(environ), chainedVariable)
	}
	if key, token := withoutPIN(c); token {
		what.Identity.Key = key
		what.Environ = variables(environ, tokenVariable)
	}
	if aws || c.ProxyURL == "" {
		what.Way = variables(environ, wayVariable)
	}
	if aws || c.CertificateAuthority == "" && len(c.CertificateAuthorityData) == 0 {
		what.Roots = variables(environ, rootsVariable)
	}
	return hashed(what)
}

// SessionID names the session of a server, an identity there, and those who read
// one kubeconfig, or else dial one set of addresses. A pair of it must never open
// the way to another server, or as somebody else. What may change between two
// starts is not in it: the bytes of a certificate, the way there, a policy.
func SessionID(c *config.Config, environ []string) string {
	what := struct {
		Server   string
		Name     string `json:",omitempty"`
		Identity config.Identity
		Environ  []string `json:",omitempty"`
		Subject  []byte   `json:",omitempty"` // of an inline pair
		Out      string   `json:",omitempty"`
		Listen   []string `json:",omitempty"`
	}{c.Server, c.TLSServerName, c.Identity, nil, subject(c.CertPEM), c.KubeconfigOut, nil}
	i := &what.Identity
	i.PINSource, i.Renew, i.RenewBefore, i.SignerName = "", "", 0, ""
	if c.Auth == config.AuthSigV4 {
		what.Environ = variables(environ, func(name string) bool {
			return identityVariable(name) && name != "AWS_SECRET_ACCESS_KEY" && name != "AWS_SESSION_TOKEN"
		})
	}
	if key, token := withoutPIN(c); token {
		i.Key = key
		what.Environ = variables(environ, tokenVariable)
	}
	if c.KubeconfigOut == "" {
		what.Listen = c.Listen
	}
	return hashed(what)
}

// withoutPIN is a token's URI less the PIN in it: ids are logged, and a PIN is
// short: nobody shall find it out from there.
func withoutPIN(c *config.Config) (key string, token bool) {
	r, err := c.KeyRef()
	if c.Key == "" || err != nil || r.URI == nil {
		return "", false
	}
	if _, ok := r.URI.PINValue(); ok {
		return r.URI.String(), true
	}
	return c.Key, true
}

// subject is who the first certificate of a chain is for; nil where there is none.
func subject(chain []byte) []byte {
	block, _ := pem.Decode(chain)
	if block == nil {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return c.RawSubject
}

func hashed(what any) string {
	data, err := json.Marshal(what)
	if err != nil {
		panic(err) // strings, booleans and bytes always encode
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
