package config

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// The configuration file's type.
const (
	APIVersion = "execproxy.io/v1alpha1"
	Kind       = "ProxyConfiguration"
)

// A Field is one thing that can be said: as a flag, in the environment, in the
// file and in the exec extension.
type Field struct {
	Flag  string // aws-region
	Arg   string // placeholder in usage; empty for a switch
	Usage string
	Group Group
	List  bool // may be said more than once
	Path  bool // a relative one is completed

	// upstream marks what the exec extension says under `upstream`, with the
	// kubeconfig's own key.
	upstream bool
	json     string // where it is not Flag in lowerCamelCase
	noFile   bool   // only flag and environment

	// remote marks what says something of the cluster alone and nothing of this
	// machine, besides what is upstream.
	remote bool
	set    func(*Config, string) error
}

// Group is the part of the configuration that a field belongs to; commands take
// whole groups.
type Group string

// The groups.
const (
	GroupIdentity Group = "identity"
	GroupKey      Group = "key"    // of the identity, what `execproxy key` needs as well
	GroupRenew    Group = "renew"  // of the identity, how its certificate is renewed
	GroupSigner   Group = "signer" // of the identity, who issues its certificate
	GroupCluster  Group = "cluster"
	GroupListen   Group = "listen"
	GroupLife     Group = "life"
	GroupLock     Group = "lock" // of those who have a parent
	GroupIdle     Group = "idle" // of daemons
	GroupPolicy   Group = "policy"
	GroupExec     Group = "exec"
	GroupServe    Group = "serve"
	GroupLog      Group = "log"
	GroupFile     Group = "file"
)

// Env is the field's environment variable.
func (f *Field) Env() string {
	return "EXECPROXY_" + strings.ToUpper(strings.ReplaceAll(f.Flag, "-", "_"))
}

// JSON is the field's name in the file and in the exec extension.
func (f *Field) JSON() string {
	if f.json != "" {
		return f.json
	}
	var b strings.Builder
	for i, part := range strings.Split(f.Flag, "-") {
		if i > 0 {
			part = strings.ToUpper(part[:1]) + part[1:]
		}
		b.WriteString(part)
	}
	return b.String()
}

// Switch reports a field without an argument.
func (f *Field) Switch() bool { return f.Arg == "" }

// Set says value for the field; base completes a relative path.
func (f *Field) Set(c *Config, value, base string) error {
	if f.Flag == "socket" {
		value = strings.TrimPrefix(value, "unix://") // as status and --listen write it
	}
	if f.Flag == "key" {
		if err := checkScheme(value); err != nil {
			return err
		}
	}
	if prefix, path := f.path(value); path != "" && !filepath.IsAbs(path) {
		if base == "" {
			return errors.New("is a relative path; write it absolute, a plugin has no directory of its own")
		}
		value = prefix + filepath.Join(base, path)
	}
	if name, file, _ := strings.Cut(value, "=@"); f.Flag == "header" && HeaderFromFile(value) && file != "" && !filepath.IsAbs(file) {
		if base == "" {
			return errors.New("@FILE is a relative path; write it absolute, a plugin has no directory of its own")
		}
		value = name + "=@" + filepath.Join(base, file)
	}
	return f.set(c, value)
}

// path is the part of a value that is a path, and what stands before it.
func (f *Field) path(value string) (prefix, path string) {
	switch {
	case f.Flag == "exec-command" && strings.ContainsAny(value, `/`+string(filepath.Separator)):
		return "", value // without a slash it is a name, looked for in PATH
	case f.Flag == "key":
		return keyPath(value)
	case f.Flag == "pin-source":
		return pinPath(value)
	case f.Path:
		return "", value
	}
	return "", ""
}

// SetAll says all values for the field in the place of what weaker sources said.
func (f *Field) SetAll(c *Config, values []string, base string) error {
	if f.List {
		f.clear(c)
	}
	for _, v := range values {
		if err := f.Set(c, v, base); err != nil {
			return err
		}
	}
	return nil
}

func text(p func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error { *p(c) = v; return nil }
}

func toggle(p func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", v)
		}
		*p(c) = b
		return nil
	}
}

func span(p func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is not a duration above zero, like 90s or 5m", v)
		}
		*p(c) = d
		return nil
	}
}

func list(p func(*Config) *[]string) func(*Config, string) error {
	return func(c *Config, v string) error { *p(c) = append(*p(c), v); return nil }
}

// Fields is the one table of what can be said, in the order of usage texts.
var Fields = []*Field{
	{Flag: "auth", Arg: "SCHEME", Group: GroupIdentity, Usage: "who the proxy is to the API server: mtls, sigv4, headers, exec or eks-token", set: text(func(c *Config) *string { return &c.Auth })},
	{Flag: "key", Arg: "KEY", Group: GroupKey, Path: true, Usage: "private key of mtls: a PEM file, pkcs11:… (RFC 7512), tpm:handle=0x81000100 or tpm:FILE (TSS2)", set: text(func(c *Config) *string { return &c.Key })},
	{Flag: "cert", Arg: "FILE", Group: GroupKey, Path: true, Usage: "its PEM certificate chain, leaf first; without it the chain is in the key's file or on its token", set: text(func(c *Config) *string { return &c.Cert })},
	{Flag: "pin-source", Arg: "SOURCE", Group: GroupKey, Usage: "PIN of the token, or password of the TPM's key: FILE, fd:N, credential:NAME (systemd), askpass:PROGRAM, or prompt", set: text(func(c *Config) *string { return &c.PINSource })},
	{Flag: "pkcs11-module", Arg: "FILE", Group: GroupKey, Path: true, Usage: "the token's PKCS#11 library, where the key's URI names none; without it p11-kit's", set: text(func(c *Config) *string { return &c.PKCS11Module })},
	{Flag: "tpm-device", Arg: "PATH", Group: GroupKey, Path: true, Usage: "device or Unix socket of the TPM (default /dev/tpmrm0)", set: text(func(c *Config) *string { return &c.TPMDevice })},
	{Flag: "renew", Arg: "HOW", Group: GroupRenew, Usage: "renew the certificate before it ends: same-key (default of keys in TPMs and tokens), new-key, or off (default of files)", set: text(func(c *Config) *string { return &c.Renew })},
	{Flag: "renew-before", Arg: "DURATION", Group: GroupRenew, Usage: "renew this long before the end; without it at two thirds of the certificate's life, and never in its first half", set: span(func(c *Config) *time.Duration { return &c.RenewBefore })},
	{Flag: "signer-name", Arg: "NAME", Group: GroupSigner, Usage: "signer of the cluster that issues the certificate; without it kubernetes.io/kube-apiserver-client, of nodes -kubelet", set: text(func(c *Config) *string { return &c.SignerName })},
	{Flag: "header", json: "headers", Arg: "NAME=VALUE", List: true, Group: GroupIdentity, Usage: "header of auth headers, or NAME=@FILE, re-read when it changes; repeatable", set: list(func(c *Config) *[]string { return &c.Headers })},
	{Flag: "aws-region", remote: true, Arg: "REGION", Group: GroupIdentity, Usage: "region to sign for; without it the AWS SDK's own", set: text(func(c *Config) *string { return &c.AWSRegion })},
	{Flag: "aws-service", remote: true, Arg: "NAME", Group: GroupIdentity, Usage: "service to sign for (default \"eks\")", set: text(func(c *Config) *string { return &c.AWSService })},
	{Flag: "aws-profile", Arg: "NAME", Group: GroupIdentity, Usage: "profile of the shared AWS configuration", set: text(func(c *Config) *string { return &c.AWSProfile })},
	{Flag: "aws-role-arn", remote: true, Arg: "ARN", Group: GroupIdentity, Usage: "role to assume", set: text(func(c *Config) *string { return &c.AWSRoleARN })},
	{Flag: "aws-external-id", remote: true, Arg: "ID", Group: GroupIdentity, Usage: "external id of that role", set: text(func(c *Config) *string { return &c.AWSExternalID })},
	{Flag: "unsigned-payload", Group: GroupIdentity, Usage: "send bodies over 3 MiB as UNSIGNED-PAYLOAD instead of refusing them", set: toggle(func(c *Config) *bool { return &c.UnsignedPayload })},
	{Flag: "sign-target", Group: GroupIdentity, Usage: "also sign the exact path and query, whose order plain SigV4 leaves open", set: toggle(func(c *Config) *bool { return &c.SignTarget })},
	{Flag: "eks-cluster", remote: true, Arg: "NAME", Group: GroupIdentity, Usage: "name of the EKS cluster that a token of eks-token is for", set: text(func(c *Config) *string { return &c.EKSCluster })},
	{Flag: "exec-command", Arg: "COMMAND", Group: GroupIdentity, Usage: "exec credential plugin behind the proxy, of auth exec", set: text(func(c *Config) *string { return &c.ExecCommand })},
	{Flag: "exec-arg", json: "execArgs", Arg: "ARG", List: true, Group: GroupIdentity, Usage: "argument of that plugin; repeatable", set: list(func(c *Config) *[]string { return &c.ExecArgs })},
	{Flag: "exec-env", Arg: "NAME=VALUE", List: true, Group: GroupIdentity, Usage: "environment variable of that plugin, besides those of the client; repeatable", set: list(func(c *Config) *[]string { return &c.ExecEnv })},
	{Flag: "exec-api-version", json: "execApiVersion", Arg: "VERSION", Group: GroupIdentity, Usage: "client.authentication.k8s.io/v1 (default) or …/v1beta1, which that plugin speaks", set: text(func(c *Config) *string { return &c.ExecAPIVersion })},
	{Flag: "exec-interactive-mode", Arg: "MODE", Group: GroupIdentity, Usage: "whether that plugin may use the terminal: Never, IfAvailable (default) or Always", set: text(func(c *Config) *string { return &c.ExecInteractiveMode })},
	{Flag: "exec-provide-cluster-info", Group: GroupIdentity, Usage: "tell that plugin which cluster it is for", set: toggle(func(c *Config) *bool { return &c.ExecProvideClusterInfo })},

	{Flag: "server", Arg: "URL", Group: GroupCluster, upstream: true, Usage: "the API server, https://HOST[:PORT][/BASE]", set: text(func(c *Config) *string { return &c.Server })},
	{Flag: "certificate-authority", Arg: "FILE", Group: GroupCluster, Path: true, upstream: true, Usage: "PEM certificates that vouch for it; without them the system's", set: setCAFile},
	{Flag: "certificate-authority-data", Arg: "BASE64", Group: GroupCluster, upstream: true, Usage: "the same, inline", set: setCAData},
	{Flag: "tls-server-name", Arg: "NAME", Group: GroupCluster, upstream: true, Usage: "name that its certificate must carry, where it is not the host", set: text(func(c *Config) *string { return &c.TLSServerName })},
	{Flag: "insecure-skip-tls-verify", Group: GroupCluster, upstream: true, Usage: "do not verify the API server's certificate; whoever answers gets the requests", set: toggle(func(c *Config) *bool { return &c.InsecureSkipTLSVerify })},
	{Flag: "proxy-url", Arg: "URL", Group: GroupCluster, upstream: true, Usage: "proxy on the way: http, https or socks5; without it HTTPS_PROXY and NO_PROXY", set: text(func(c *Config) *string { return &c.ProxyURL })},
	{Flag: "disable-compression", Group: GroupCluster, upstream: true, Usage: "ask the API server for no compressed answers, whatever the client takes", set: toggle(func(c *Config) *bool { return &c.DisableCompression })},

	{Flag: "listen", Arg: "ADDRESS", List: true, Group: GroupListen, Usage: "unix:///PATH or https://127.0.0.1:PORT; repeatable", set: list(func(c *Config) *[]string { return &c.Listen })},
	{Flag: "kubeconfig-out", Arg: "FILE", Group: GroupServe, Path: true, Usage: "write a kubeconfig (0600) that any client of this user can use as it is", set: text(func(c *Config) *string { return &c.KubeconfigOut })},

	{Flag: "lock-file", Arg: "FILE", Group: GroupLock, Path: true, Usage: "end when this file, locked by the parent with flock(2), comes free", set: text(func(c *Config) *string { return &c.LockFile })},
	{Flag: "foreground", Group: GroupExec, Usage: "serve in the plugin's own process instead of a daemon", set: toggle(func(c *Config) *bool { return &c.Foreground })},
	{Flag: "socket", Arg: "PATH", Group: GroupExec, Path: true, Usage: "answer for the proxy that already serves at this Unix socket", set: text(func(c *Config) *string { return &c.Socket })},
	{Flag: "extension-policy", Arg: "POLICY", noFile: true, Group: GroupExec, Usage: "what the cluster's exec extension may say: all (default), or cluster, nothing of this machine: for extensions that others write", set: setExtensionPolicy},
	{Flag: "provider", Arg: "NAME", noFile: true, Group: GroupExec, Usage: "count this plugin's calls under this name in metrics and status", set: setProvider},
	{Flag: "idle-timeout", Arg: "DURATION", Group: GroupIdle, Usage: "end a daemon without lock after this time without a client (default 5m)", set: span(func(c *Config) *time.Duration { return &c.IdleTimeout })},
	{Flag: "drain-timeout", Arg: "DURATION", Group: GroupLife, Usage: "time that requests get to end after SIGTERM (default 10s)", set: span(func(c *Config) *time.Duration { return &c.DrainTimeout })},
	{Flag: "foreign-authorization", Arg: "POLICY", Group: GroupPolicy, Usage: "requests with an Authorization of their own: reject (default), or passthrough without our identity", set: text(func(c *Config) *string { return &c.ForeignAuthorization })},

	{Flag: "config", Arg: "FILE", Group: GroupFile, noFile: true, Usage: "YAML, apiVersion execproxy.io/v1alpha1, kind ProxyConfiguration", set: text(func(c *Config) *string { return &c.File })},
	{Flag: "metrics-address", Arg: "HOST:PORT", Group: GroupLog, Usage: "serve Prometheus metrics here, at /metrics; without it nowhere", set: text(func(c *Config) *string { return &c.MetricsAddress })},
	{Flag: "log-level", Arg: "LEVEL", Group: GroupLog, Usage: "debug, info, warn or error (default info)", set: text(func(c *Config) *string { return &c.LogLevel })},
	{Flag: "log-file", Arg: "FILE", Group: GroupLog, Path: true, Usage: "where to log; without it stderr, or the state directory for a daemon", set: text(func(c *Config) *string { return &c.LogFile })},
	{Flag: "log-format", Arg: "FORMAT", Group: GroupLog, Usage: "text or json (default text)", set: text(func(c *Config) *string { return &c.LogFormat })},
}

// A stronger source that names one form of the authority takes back the other.
func setCAFile(c *Config, v string) error {
	c.CertificateAuthority = v
	c.CertificateAuthorityData = nil
	return nil
}

func setCAData(c *Config, v string) error {
	data, err := base64.StdEncoding.DecodeString(v)
	if err != nil {
		return errors.New("is not base64 of a PEM file")
	}
	c.CertificateAuthorityData = data
	c.CertificateAuthority = ""
	return nil
}

// InGroups is the fields of the named groups, in the table's order.
func InGroups(groups ...Group) []*Field {
	var out []*Field
	for _, f := range Fields {
		if slices.Contains(groups, f.Group) {
			out = append(out, f)
		}
	}
	return out
}

func (c *Config) applyEnviron(lookup func(string) (string, bool), dir string) error {
	for _, f := range Fields {
		v, ok := lookup(f.Env())
		if !ok || v == "" || f.Flag == "config" {
			continue
		}
		values := []string{v}
		if f.List {
			values = strings.Split(strings.TrimRight(v, "\n"), "\n")
		}
		if err := f.SetAll(c, values, dir); err != nil {
			return &FieldError{"environment", f.Env(), err}
		}
	}
	return nil
}

// clear empties a list, which a stronger source replaces as a whole.
func (f *Field) clear(c *Config) {
	switch f.Flag {
	case "header":
		c.Headers = nil
	case "listen":
		c.Listen = nil
	case "exec-arg":
		c.ExecArgs = nil
	case "exec-env":
		c.ExecEnv = nil
	}
}

// applyExtension reads what the kubeconfig's exec extension says: the fields of
// the file, with the cluster under `upstream` in the kubeconfig's own words.
func (c *Config) applyExtension(raw json.RawMessage) error {
	const source = "exec extension"
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("%s: not an object with fields such as upstream, auth and key", source)
	}
	if up, ok := doc["upstream"]; ok {
		delete(doc, "upstream")
		var cluster map[string]json.RawMessage
		if err := json.Unmarshal(up, &cluster); err != nil {
			return &FieldError{source, "upstream", errors.New("not an object with fields such as server and certificate-authority-data")}
		}
		known := map[string]*Field{}
		for _, f := range Fields {
			if !f.upstream {
				continue
			}
			known[f.Flag] = f
			if c.ExtensionPolicy == ExtensionCluster && f.Path {
				known[f.Flag] = nil
			}
			if _, twice := doc[f.JSON()]; twice {
				return &FieldError{source, f.JSON(), fmt.Errorf("stands beside upstream, where it is upstream.%s; say it there alone", f.Flag)}
			}
		}
		if err := c.applyFields(source, "upstream.", cluster, known, ""); err != nil {
			return err
		}
	}
	// Where it came from is the cluster's own business; the file's name of a
	// configuration may be said here and nowhere else in a document.
	if file, ok := doc["config"]; ok {
		if c.ExtensionPolicy == ExtensionCluster {
			return notTheCluster(source, "config")
		}
		delete(doc, "config")
		if err := json.Unmarshal(file, &c.File); err != nil {
			return &FieldError{source, "config", errors.New("must be a path")}
		}
	}
	return c.applyExtensionFields(source, doc)
}

func (c *Config) applyDocument(source string, doc map[string]json.RawMessage, base string) error {
	known := map[string]*Field{}
	for _, f := range Fields {
		if !f.noFile {
			known[f.JSON()] = f
		}
	}
	return c.applyFields(source, "", doc, known, base)
}

func (c *Config) applyFields(source, prefix string, doc map[string]json.RawMessage, known map[string]*Field, base string) error {
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		f, ok := known[name]
		if !ok {
			return &FieldError{source, prefix + quoteOdd(name), fmt.Errorf("unknown field; known are %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))}
		}
		if f == nil {
			return notTheCluster(source, prefix+name)
		}
		values, err := f.values(doc[name])
		if err != nil {
			return &FieldError{source, prefix + name, err}
		}
		if err := f.SetAll(c, values, base); err != nil {
			return &FieldError{source, prefix + name, err}
		}
	}
	return nil
}

// values is what a document says for the field, as a flag would say it.
func (f *Field) values(raw json.RawMessage) ([]string, error) {
	switch {
	case f.List:
		var l []string
		if err := json.Unmarshal(raw, &l); err != nil {
			return nil, errors.New("must be a list of strings")
		}
		return l, nil
	case f.Switch():
		var b bool
		if err := json.Unmarshal(raw, &b); err != nil {
			return nil, errors.New("must be true or false")
		}
		return []string{strconv.FormatBool(b)}, nil
	default:
		var s string
		if err := json.Unmarshal(raw, &s); err != nil || string(raw) == "null" {
			if f.Arg == "DURATION" {
				return nil, errors.New("must be a string with a unit, like 90s or 5m")
			}
			return nil, errors.New("must be a string; put it in quotes")
		}
		return []string{s}, nil
	}
}

func decodeYAML(data []byte) (map[string]json.RawMessage, error) {
	// YAMLToJSONStrict refuses a key that stands twice.
	j, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, errors.New("not YAML, or a field stands in it twice: " + oneLine(err.Error()))
	}
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(j, &doc); err != nil || doc == nil {
		return nil, errors.New("not a YAML mapping with apiVersion and kind")
	}
	return doc, nil
}

// quoteOdd keeps a name from elsewhere on one line.
func quoteOdd(name string) string {
	if q := strconv.Quote(name); len(q) != len(name)+2 || len(name) > 64 {
		return q[:min(len(q), 66)]
	}
	return name
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(s), " ")
}

func limit(r io.Reader, n int64) io.Reader { return io.LimitReader(r, n) }
