package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// runExec is the exec credential plugin. Its standard output is the
// ExecCredential's alone.
func runExec(ctx context.Context, w *world, o *options) error {
	if err := o.noOperands(); err != nil {
		return err
	}
	if err := o.singles(); err != nil {
		return err
	}
	o.began = time.Now()
	info := &clientauthentication.ExecCredential{APIVersion: clientauthentication.V1, Kind: clientauthentication.Kind}
	raw := w.getenv(clientauthentication.InfoVariable)
	told := raw != ""
	if told {
		var err error
		if info, err = clientauthentication.DecodeInfo([]byte(raw)); err != nil {
			return fmt.Errorf("%w; the client sets it: use the kubeconfig that `execproxy kubeconfig` prints", err)
		}
	}
	var extension []byte
	if info.Spec.Cluster != nil {
		extension = info.Spec.Cluster.Config
	}
	c, err := o.load(w, extension)
	if err != nil {
		return err
	}
	if err := o.sameCluster(w, c, info, extension); err != nil {
		return err
	}
	answer := func(s *clientauthentication.Status) error {
		out := clientauthentication.ExecCredential{APIVersion: info.APIVersion, Kind: clientauthentication.Kind, Status: s}
		data, err := out.Encode()
		if err != nil {
			return err
		}
		_, err = w.stdout.Write(data)
		return err
	}
	if o.direct {
		s, err := w.direct(ctx, o, c, info)
		if err != nil {
			return err
		}
		return answer(s)
	}
	ask, err := askFor(c, info, told)
	if err != nil {
		return err
	}
	ask.Provider, ask.Began = c.Provider, o.began
	if c.Socket != "" {
		// Whoever serves there says no if it stands in front of another cluster.
		if c.Server != "" {
			u, err := config.ServerURL(c.Server)
			if err != nil {
				return &config.FieldError{Field: "server", Err: err}
			}
			ask.Server = u.String()
		}
		s, err := daemon.Answer(ctx, c.Socket, ask)
		if err != nil {
			return err
		}
		return answer(s)
	}
	if err := o.complete(c); err != nil {
		return err
	}
	ask.Server = c.Server
	p, err := w.places()
	if err != nil {
		return err
	}
	plugin := &daemon.Plugin{
		Config: c, Places: p, Environ: w.environ, Version: w.version, Ask: ask, Login: w.login(c, info.Spec.Interactive),
		Unlock: func(ctx context.Context) ([]byte, error) { return w.unlock(ctx, c, info.Spec.Interactive) },
	}
	if !c.Foreground {
		s, err := plugin.Obtain(ctx)
		if err != nil {
			return err
		}
		return answer(s)
	}
	if ask.LockFile == "" {
		return errors.New("--foreground: this client names no lock file and waits for the plugin to exit, which would be never; leave --foreground out")
	}
	return plugin.Foreground(ctx, answer)
}

// askFor decides what this client needs of a proxy, and completes the cluster
// that it names itself.
func askFor(c *config.Config, info *clientauthentication.ExecCredential, told bool) (daemon.Ask, error) {
	ask := daemon.Ask{LockFile: c.LockFile}
	if ask.LockFile == "" {
		ask.LockFile = info.Spec.LockFilePath
	}
	cluster := info.Spec.Cluster
	if ask.LockFile != "" {
		// The client takes a proxyConfig, so the cluster it names is the real one,
		// unless it came to a listener of ours: see sameCluster.
		if cluster != nil && (c.Server == "" || config.SameServer(c.Server, cluster.Server)) {
			fromClient(c, cluster)
		}
		return ask, nil
	}
	_, loopback, err := c.Listeners()
	if err != nil {
		return ask, err
	}
	if n := len(loopback); n > 0 {
		ask.Loopback = loopback[n-1]
		if called, ok := calledListener(cluster); ok {
			if !slices.Contains(loopback, called) {
				return ask, fmt.Errorf("the client calls https://%s, --listen says %s: %w; name the address that the client calls", called, strings.Join(c.Listen, ", "), errMixed)
			}
			ask.Loopback, ask.Authority = called, cluster.CertificateAuthorityData
		}
	}
	switch {
	case ask.Loopback != "":
		return ask, nil
	case cluster == nil && !told:
		return ask, fmt.Errorf("%s is not set: a Kubernetes client runs this, from the kubeconfig that `execproxy kubeconfig` prints (with --provide-cluster-info=false for a client that sets none); by hand, try `execproxy demo` or `execproxy run -- kubectl get pods`", clientauthentication.InfoVariable)
	case cluster == nil:
		return ask, fmt.Errorf("%s names no cluster; set provideClusterInfo: true in the kubeconfig's exec section, or, for a client that does not heed it, print one with `execproxy kubeconfig --provide-cluster-info=false`", clientauthentication.InfoVariable)
	}
	u, err := url.Parse(cluster.Server)
	if err != nil {
		return ask, errors.New("the client's server is not a URL; correct cluster.server in the kubeconfig")
	}
	if u.Scheme == "http" {
		_, err := config.ServerURL(cluster.Server)
		return ask, fmt.Errorf("the client's server: %w", err)
	}
	addr, err := config.LoopbackAddress(u)
	if err != nil && c.Provider != "" {
		return ask, fmt.Errorf("this controller calls %s itself and does not know proxyConfig (it names no lock file); build it with proxy/client/clientgo, or, where the controller may have the credential itself, say --direct in the arguments of provider %s", config.Shown(u), c.Provider)
	}
	if err != nil {
		return ask, fmt.Errorf("this client calls %s itself and does not know proxyConfig (it names no lock file); use the kubeconfig that `execproxy kubeconfig` prints, or `execproxy run -- CMD`", config.Shown(u))
	}
	ask.Loopback, ask.Authority = addr, cluster.CertificateAuthorityData
	return ask, nil
}

// calledListener is the loopback address that the client is going to call.
func calledListener(k *clientauthentication.Cluster) (string, bool) {
	if k == nil {
		return "", false
	}
	u, err := url.Parse(k.Server)
	if err != nil || u.Scheme != "https" {
		return "", false
	}
	addr, err := config.LoopbackAddress(u)
	return addr, err == nil
}

// fromClient takes the cluster from what the client says of its own.
func fromClient(c *config.Config, k *clientauthentication.Cluster) {
	c.Server = k.Server
	if c.CertificateAuthority == "" && len(c.CertificateAuthorityData) == 0 && !c.InsecureSkipTLSVerify {
		c.CertificateAuthorityData = k.CertificateAuthorityData
	}
	if c.TLSServerName == "" {
		c.TLSServerName = k.TLSServerName
	}
	if c.ProxyURL == "" {
		c.ProxyURL = k.ProxyURL
	}
	if c.CertificateAuthority == "" && len(c.CertificateAuthorityData) == 0 { // one that we were told is stronger
		c.InsecureSkipTLSVerify = c.InsecureSkipTLSVerify || k.InsecureSkipTLSVerify
	}
	c.DisableCompression = c.DisableCompression || k.DisableCompression
}
