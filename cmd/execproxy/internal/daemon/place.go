package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
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

// Authority is the directory of the loopback authority.
func (p Places) Authority() string { return filepath.Join(p.State, "ca") }

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

	// These start no daemon and are found by no plugin that did not name them.
	lifeServe = "serve"
	lifeRun   = "run"
)

// identityVariables are the variables that decide who the AWS SDK says we are.
// Their order in the environment means nothing: callers exist that shuffle it.
func identityVariables(environ []string) []string {
	var out []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "AWS_") {
			out = append(out, e)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// proxyVariables decide the way to the API server.
func proxyVariables(environ []string) []string {
	var out []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		switch strings.ToUpper(name) {
		case "HTTPS_PROXY", "NO_PROXY":
			out = append(out, e)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
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
	}{c.Cluster, c.Identity, c.ForeignAuthorization, c.IdleTimeout.String(), nil, nil, life}
	if c.Auth == config.AuthSigV4 {
		what.Environ = identityVariables(environ)
	}
	if c.ProxyURL == "" {
		what.Way = proxyVariables(environ)
	}
	data, err := json.Marshal(what)
	if err != nil {
		panic(err) // strings, booleans and bytes always encode
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
