package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// A plugin's arguments and environment are put together by programs. One of them,
// sigs.k8s.io/cluster-inventory-api up to v0.1.3, appends what one ClusterProfile
// says to what the one before it said: the last value would win, and a request go to
// one cluster as who we are in another. So `exec` takes nothing that contradicts
// itself, where the other commands take the last value as kubectl does.

// errMixed says what is most likely wrong.
var errMixed = errors.New("arguments of two clusters are mixed, or one of them is wrong")

// singles refuses a flag that was said twice and differently.
func (o *options) singles() error {
	var first error
	o.set.Visit(func(f *pflag.Flag) {
		v, ok := f.Value.(*fieldValue)
		if !ok || first != nil {
			return
		}
		switch {
		case v.differs:
			first = usagef("--%s is said more than once, with different values: %w; say it once", f.Name, errMixed)
		case f.Name == "header":
			first = oneIdentity(v.values)
		case f.Name == "certificate-authority" && o.set.Changed("certificate-authority-data"):
			first = usagef("--certificate-authority and --certificate-authority-data are both said: %w; say one of them", errMixed)
		}
	})
	return first
}

// oneIdentity refuses two values for a header field of which a request has one.
// Others, groups for one, may be said as often as there are values.
func oneIdentity(headers []string) error {
	seen := map[string]string{}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, "=")
		name = http.CanonicalHeaderKey(name)
		switch before, twice := seen[name]; {
		case !twice:
			seen[name] = value
		case before != value && slices.Contains([]string{"Authorization", "X-Remote-User", "X-Remote-Uid", "Impersonate-User"}, name):
			return usagef("--header %s is said more than once, with different values: %w; say it once", name, errMixed)
		}
	}
	return nil
}

// sameCluster refuses sources that name different API servers, and a client that
// means another one than they do.
func (o *options) sameCluster(w *world, c *config.Config, info *clientauthentication.ExecCredential, extension []byte) error {
	flag, file := "", ""
	if f := o.set.Lookup("server"); f != nil {
		flag = f.Value.String()
	}
	if f := o.set.Lookup("config"); f != nil {
		file = f.Value.String()
	}
	claims, err := config.Claims(config.Sources{Environ: w.lookup, File: file, Extension: extension, Dir: w.dir}, flag)
	if err != nil || len(claims) == 0 {
		return err
	}
	for _, other := range claims[1:] {
		if !config.SameServer(claims[0].Server, other.Server) {
			return fmt.Errorf("%s names %s, %s names %s: %w; name one server, in as many places as you like",
				claims[0].Source, config.ShowServer(claims[0].Server), other.Source, config.ShowServer(other.Server), errMixed)
		}
	}
	k := info.Spec.Cluster
	if o.direct || // see directCluster
		k == nil || k.Server == "" || config.SameServer(claims[0].Server, k.Server) {
		return nil
	}
	if info.Spec.LockFilePath == "" && c.LockFile == "" && len(c.Listen) > 0 {
		return nil // it calls a listener of ours, by whatever name
	}
	u, err := url.Parse(k.Server)
	if err != nil {
		return errors.New("the client's server is not a URL; correct cluster.server in the kubeconfig")
	}
	if _, err := config.LoopbackAddress(u); err == nil {
		if info.Spec.LockFilePath == "" && c.LockFile == "" {
			return nil // it calls a listener, and knows ours by its certificate
		}
		p, err := w.places()
		if err != nil {
			return err
		}
		if daemon.OurAuthority(p, k.CertificateAuthorityData) {
			return nil // a kubeconfig of ours, read by a client that knows proxyConfig
		}
	}
	return fmt.Errorf("the client means %s, %s names %s: %w; name the client's server, or none",
		config.ShowServer(k.Server), claims[0].Source, config.ShowServer(claims[0].Server), errMixed)
}
