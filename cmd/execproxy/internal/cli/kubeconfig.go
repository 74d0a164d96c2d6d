package cli

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// The ports that a kubeconfig's loopback listener is chosen from: below the
// ports that systems hand out by themselves, so that no outgoing connection of
// somebody else takes it.
const (
	firstPort = 20000
	ports     = 10000
)

const installHint = "execproxy is not installed: go install github.com/execproxy/execproxy/cmd/execproxy@latest"

// runKubeconfig prints a kubeconfig whose requests go through execproxy.
func runKubeconfig(_ context.Context, w *world, o *options) error {
	if err := o.noOperands(); err != nil {
		return err
	}
	if o.set.Changed("cluster-profile-provider") {
		return o.printProvider(w)
	}
	s, err := o.loadSource(w)
	if err != nil {
		return err
	}
	c := s.config
	if err := printable(c); err != nil {
		return err
	}
	if o.direct {
		return printDirect(w, o, s)
	}
	p, err := w.places()
	if err != nil {
		return err
	}
	addr, err := listenAddress(c, p)
	if err != nil {
		return err
	}
	ca, err := daemon.LoopbackAuthority(p)
	if err != nil {
		return err
	}
	command, err := o.pluginCommand()
	if err != nil {
		return err
	}
	w.warn(c, "kubectl", "kubeconfig", "client")
	c.Listen = nil // the server's URL says it
	ext, err := json.Marshal(c.Extension())
	if err != nil {
		return err
	}
	out := api.NewConfig()
	out.CurrentContext = s.context
	out.Clusters[s.cluster] = &api.Cluster{
		Server:                   loopbackURL(addr, c.Server),
		CertificateAuthorityData: ca,
		Extensions:               map[string]runtime.Object{execExtension: &runtime.Unknown{Raw: ext, ContentType: runtime.ContentTypeJSON}},
	}
	out.AuthInfos[s.user] = &api.AuthInfo{Exec: &api.ExecConfig{
		APIVersion: clientauthentication.V1, Command: command, Args: []string{"exec"},
		InteractiveMode: api.IfAvailableExecInteractiveMode, ProvideClusterInfo: true, InstallHint: installHint,
	}}
	out.Contexts[s.context] = &api.Context{Cluster: s.cluster, AuthInfo: s.user, Namespace: s.namespace}
	if !o.clusterInfo {
		c.Listen = []string{"https://" + addr}
		tellByArguments(out, s, c)
	}
	data, err := clientcmd.Write(*out)
	if err != nil {
		return err
	}
	_, err = w.stdout.Write(data)
	return err
}

// printDirect prints a kubeconfig whose requests go to the API server itself.
func printDirect(w *world, o *options, s *source) error {
	if len(s.config.Listen) > 0 {
		return &config.FieldError{Field: "listen", Err: errNoProxy}
	}
	if err := daemon.CheckDirect(s.config); err != nil {
		return err
	}
	command, err := o.pluginCommand()
	if err != nil {
		return err
	}
	w.warn(s.config, "kubectl", "kubeconfig", "client")
	data, err := directKubeconfig(s, command, o.clusterInfo)
	if err != nil {
		return err
	}
	_, err = w.stdout.Write(data)
	return err
}

// printable refuses to print a secret, and paths that a plugin could not find.
func printable(c *config.Config) error {
	if len(c.KeyPEM) > 0 {
		return errors.New("the user's private key stands inline in the kubeconfig, and would in the one to be printed; write it to a file of mode 0600 and say --key FILE --cert FILE, or use `execproxy run`")
	}
	if r, err := config.ParseKey(c.Key); c.Key != "" && err == nil && r.URI != nil {
		if _, ok := r.URI.PINValue(); ok {
			return errors.New("the token's PIN would stand in the kubeconfig for all to read (pin-value in the key's URI); write it to a file of mode 0600 and say --pin-source FILE, or leave it out and type it when kubectl asks")
		}
	}
	for _, h := range c.Headers {
		if strings.Contains(h, "=") && !config.HeaderFromFile(h) {
			return errors.New("a header's value, or the user's token, would stand in the kubeconfig for all to read; write it to a file of mode 0600 (of a token: \"Bearer TOKEN\") and say --auth headers --header NAME=@FILE (of a token: Authorization=@FILE), or use `execproxy run`")
		}
	}
	return nil
}

// listenAddress is the loopback address that was asked for, or one that stays
// the same for this user, cluster and identity as long as nobody else has it.
func listenAddress(c *config.Config, p daemon.Places) (string, error) {
	if len(c.Listen) > 1 {
		return "", &config.FieldError{Field: "listen", Err: errors.New("a kubeconfig names one address; say it once")}
	}
	if len(c.Listen) == 1 {
		a, err := config.ParseListen(c.Listen[0])
		if err != nil {
			return "", &config.FieldError{Field: "listen", Err: err}
		}
		if a.Network != "tcp" {
			return "", &config.FieldError{Field: "listen", Err: errors.New("a kubeconfig can name no Unix socket; use https://127.0.0.1:PORT")}
		}
		if _, port, _ := net.SplitHostPort(a.Address); port == "0" {
			return "", &config.FieldError{Field: "listen", Err: errors.New("a kubeconfig needs a port that stays; name one, or leave --listen out")}
		}
		return a.Address, nil
	}
	ours := map[string]bool{}
	for _, r := range daemon.Running(context.Background(), p) {
		if r.Server != c.Server {
			continue // its port stays its own
		}
		for _, l := range r.Listeners {
			ours[l] = true
		}
	}
	return steadyAddress(daemon.ID(c, nil, ""), func(addr string) bool { return ours["https://"+addr] })
}

// steadyAddress is the same one for the same words of the same user, as long as
// nobody else has it.
func steadyAddress(words string, ours func(addr string) bool) (string, error) {
	sum := sha256.Sum256([]byte(strconv.Itoa(os.Getuid()) + " " + words))
	start := binary.BigEndian.Uint64(sum[:8]) % ports
	for i := range uint64(ports) {
		addr := net.JoinHostPort("127.0.0.1", strconv.FormatUint(firstPort+(start+i)%ports, 10))
		if ours(addr) || vacant(addr) {
			return addr, nil
		}
	}
	return "", errors.New("no loopback port from 20000 to 29999 is free; name one with --listen https://127.0.0.1:PORT")
}

// loopbackURL is what a client calls instead of the server. It has the server's
// path: clients join it to their own paths, each in its way, and a webhook's is
// nothing else.
func loopbackURL(addr, server string) string {
	out := url.URL{Scheme: "https", Host: addr}
	if u, err := config.ServerURL(server); err == nil {
		out.Path, out.RawPath = u.Path, u.RawPath
	}
	return out.String()
}

func vacant(addr string) bool {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// pluginCommand is what the kubeconfig calls: the name alone when that finds
// this very binary.
func (o *options) pluginCommand() (string, error) {
	if o.executable != "" {
		return o.executable, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the execproxy binary: %w; say --command", err)
	}
	if found, err := exec.LookPath("execproxy"); err == nil {
		a, errA := filepath.EvalSymlinks(found)
		b, errB := filepath.EvalSymlinks(self)
		if errA == nil && errB == nil && a == b {
			return "execproxy", nil
		}
	}
	return self, nil
}

// plainKubeconfig is a kubeconfig with the session's pair in it: for clients of
// this user that run no plugin.
func plainKubeconfig(s *source, addr string, ca, cert, key []byte) ([]byte, error) {
	out := api.NewConfig()
	out.CurrentContext = s.context
	out.Clusters[s.cluster] = &api.Cluster{Server: loopbackURL(addr, s.config.Server), CertificateAuthorityData: slices.Clone(ca)}
	out.AuthInfos[s.user] = &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	out.Contexts[s.context] = &api.Context{Cluster: s.cluster, AuthInfo: s.user, Namespace: s.namespace}
	return clientcmd.Write(*out)
}
