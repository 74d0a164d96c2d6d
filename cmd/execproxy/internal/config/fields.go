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
