package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/plugin"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/systemd"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/signer/sigv4"
	"github.com/execproxy/execproxy/signer/token"
)

// A bearer is an identity that somebody else hands out, piece by piece.
type bearer struct {
	cache *token.Cache
	creds *sigv4.Credentials // of eks-token
	login bool               // where we cannot get one, the user's plugin may ask the user
}

// handedOut reports an identity that a bearer gets.
func handedOut(c *config.Config) bool {
	return c.Auth == config.AuthExec || c.Auth == config.AuthEKSToken
}

// newBearer gets the first credential, if it was not given one, so that what is wrong
// comes out now.
func newBearer(ctx context.Context, c *config.Config, environ []string, given *clientauthentication.Status, log *slog.Logger) (*bearer, *token.Credential, error) {
	b := &bearer{}
	var source token.SourceFunc
	switch c.Auth {
	case config.AuthExec:
		b.login = c.ExecInteractiveMode != config.InteractiveNever
		o, err := Chained(c, chainedEnviron(environ))
		if err != nil {
			return nil, nil, err
		}
		source = func(ctx context.Context) (*token.Credential, error) {
			if c.ExecInteractiveMode == config.InteractiveAlways {
				return nil, &plugin.Error{Command: c.ExecCommand, Err: errors.New("it wants a terminal (interactiveMode Always), and there is none: run the client in one")}
			}
			s, err := plugin.Credential(ctx, o)
			if err != nil {
				return nil, err
			}
			return plugin.Usable(s, time.Now())
		}
	case config.AuthEKSToken:
		first, cancel := context.WithTimeout(ctx, credentialsTimeout)
		defer cancel()
		var err error
		if b.creds, err = awsCredentials(first, c, log); err != nil {
			return nil, nil, err
		}
		source = func(ctx context.Context) (*token.Credential, error) {
			text, expires, err := b.creds.EKSToken(ctx, c.EKSCluster)
			if err != nil {
				return nil, err
			}
			return &token.Credential{Token: text, Expires: expires}, nil
		}
	}
	b.cache = token.New(source, token.Options{Timeout: credentialsTimeout, Logger: log})
	if given != nil {
		if err := b.put(ctx, given); err != nil {
			return nil, nil, err
		}
	}
	k, err := b.cache.Credential(ctx)
	return b, k, err
}

// put takes over what a plugin got from its user.
func (b *bearer) put(ctx context.Context, s *clientauthentication.Status) error {
	k, err := plugin.Usable(s, time.Now())
	if err != nil {
		return err
	}
	return b.cache.Put(ctx, k)
}

// refused is told that the API server did not take what was in use at a time.
func (b *bearer) refused(at time.Time) bool {
	if b.creds != nil {
		b.creds.Invalidate() // who signed it may be nobody any more
	}
	return b.cache.Refused(at)
}

// run keeps what is handed out fresh until ctx ends.
func (b *bearer) run(ctx context.Context, changed func(*token.Credential)) error {
	var all sync.WaitGroup
	defer all.Wait()
	if b.creds != nil {
		all.Go(func() { _ = b.creds.Run(ctx) })
	}
	return b.cache.Run(ctx, changed)
}

// Chained is how the plugin behind the proxy is run. It reads no terminal: its caller may
// give it one.
func Chained(c *config.Config, environ []string) (plugin.Options, error) {
	environ = slices.DeleteFunc(without(environ, clientauthentication.InfoVariable), func(e string) bool {
		return strings.HasPrefix(e, "EXECPROXY_") // it may be execproxy, too, and was not spoken to
	})
	o := plugin.Options{
		Command: c.ExecCommand, Args: c.ExecArgs, APIVersion: c.ExecAPIVersion,
		Env: slices.Concat(environ, c.ExecEnv),
	}
	if c.ExecProvideClusterInfo {
		ca := c.CertificateAuthorityData
		if c.CertificateAuthority != "" {
			var err error
			if ca, err = os.ReadFile(c.CertificateAuthority); err != nil {
				return o, &config.FieldError{Field: "certificate-authority", Err: fmt.Errorf("%w; name the PEM file with the CA of the API server", err)}
			}
		}
		o.Cluster = &clientauthentication.Cluster{
			Server: c.Server, TLSServerName: c.TLSServerName, InsecureSkipTLSVerify: c.InsecureSkipTLSVerify,
			CertificateAuthorityData: ca, ProxyURL: c.ProxyURL, DisableCompression: c.DisableCompression,
		}
	}
	return o, nil
}

// chainedEnviron is what of the caller's environment a chained plugin gets from a daemon.
// Whatever it gets may decide who it says we are, so all of it is part of the daemon's id
// but a terminal to draw on. What differs from shell to shell, or from one start of a service to
// the next, it does not get: there would be a daemon for each of them, and a session. Neither does it get what is said to us.
func chainedEnviron(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(ofShells, name) || slices.Contains(systemd.Variables, name) || slices.Contains(systemd.Fleeting, name) ||
			strings.HasPrefix(name, "EXECPROXY_") || strings.HasPrefix(name, "TERM_PROGRAM") ||
			name == "KUBECONFIG" || name == clientauthentication.InfoVariable
	})
}

// ofShells are variables of a shell, a terminal's window, or a login.
var ofShells = []string{
	"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "HISTFILE", "PS1", "PROMPT_COMMAND", "SHELL_SESSION_ID", "STARSHIP_SESSION_KEY",
	"SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "GPG_TTY", "XDG_SESSION_ID", "XDG_VTNR", "XDG_ACTIVATION_TOKEN", "DESKTOP_STARTUP_ID",
	"TMUX", "TMUX_PANE", "STY", "WINDOW", "ZELLIJ", "ZELLIJ_PANE_ID", "ZELLIJ_SESSION_NAME",
	"WINDOWID", "WINDOWPATH", "COLORFGBG", "TERM_SESSION_ID", "VTE_VERSION", "ITERM_SESSION_ID", "ITERM_PROFILE", "WT_SESSION", "WT_PROFILE_ID",
	"GNOME_TERMINAL_SCREEN", "GNOME_TERMINAL_SERVICE", "KONSOLE_DBUS_SERVICE", "KONSOLE_DBUS_SESSION", "KONSOLE_DBUS_WINDOW",
	"KITTY_PID", "KITTY_WINDOW_ID", "ALACRITTY_LOG", "ALACRITTY_SOCKET", "ALACRITTY_WINDOW_ID", "WEZTERM_PANE", "WEZTERM_UNIX_SOCKET",
}

// Inherited reports a variable of ours that a plugin behind gets, too.
func Inherited(name string) bool { return len(chainedEnviron([]string{name + "="})) == 1 }

// chainedVariable tells which of those is part of the daemon's id.
func chainedVariable(name string) bool {
	switch name {
	case "TERM", "COLORTERM", "LS_COLORS", "DISPLAY", "WAYLAND_DISPLAY":
		return false
	}
	return true
}

// setPair has the next connections made with the certificate of k, if it has one, and
// reports whether that is another one than before.
func (id *identity) setPair(k *token.Credential) bool {
	var pair *tls.Certificate
	if len(k.CertificatePEM) > 0 {
		p, err := tls.X509KeyPair(k.CertificatePEM, k.KeyPEM)
		if err != nil { // it was looked at when it came
			id.log.Error("the new certificate is not used, the old one stays", "error", err)
			return false
		}
		pair = &p
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	same := pair == nil && id.pair == nil || pair != nil && id.pair != nil && bytes.Equal(pair.Certificate[0], id.pair.Certificate[0])
	if same {
		return false
	}
	id.pair = pair
	if pair != nil {
		id.who = pair.Leaf.Subject.CommonName
	}
	return true
}

// bearerName says who a bearer is, before any certificate does: which plugin knows, or an
// access key's id.
func bearerName(ctx context.Context, c *config.Config, b *bearer) string {
	if b.creds == nil {
		return filepath.Base(c.ExecCommand)
	}
	got, err := b.creds.Retrieve(ctx)
	if err != nil {
		return c.EKSCluster
	}
	return got.AccessKeyID
}
