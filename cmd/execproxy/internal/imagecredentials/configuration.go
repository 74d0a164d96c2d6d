package imagecredentials

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/imagecredentials/credhelper"
)

// The type of the file that says whose credentials are for which registry.
const (
	ConfigurationVersion = "execproxy.io/v1alpha1"
	ConfigurationKind    = "ImageCredentialConfiguration"
)

// Bounds of what a rule may say about keeping its credentials.
const (
	defaultKeep = 5 * time.Minute
	maxKeep     = 12 * time.Hour

	maxConfiguration = 1 << 20 // bytes
)

// A Configuration is such a file.
type Configuration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// DockerConfig is a config.json whose credHelpers are asked for the registries
	// that no rule is for.
	DockerConfig string `json:"dockerConfig,omitempty"`
	Registries   []Rule `json:"registries,omitempty"`
}

// A Rule says where the credentials of some registries come from: exactly one of
// passwordFile, exec and helper.
type Rule struct {
	Match         string   `json:"match"`
	Username      string   `json:"username,omitempty"`
	PasswordFile  string   `json:"passwordFile,omitempty"`
	Exec          *Command `json:"exec,omitempty"`
	Helper        string   `json:"helper,omitempty"`
	CacheDuration string   `json:"cacheDuration,omitempty"`

	pattern Pattern
	keep    time.Duration
}

// A Command prints a password, or a token, on its standard output.
type Command struct {
	Command string   `json:"command"`
	Args    []string `json:"args,omitempty"`
}

// ReadConfiguration reads and checks a file. Unknown fields are errors.
func ReadConfiguration(path string) (*Configuration, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // a FIFO would wait for a writer
		return nil, fmt.Errorf("reading the image credential configuration %s: not a readable file of at most %d bytes", path, maxConfiguration)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the image credential configuration: %w; correct --registries", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfiguration+1))
	if err != nil || len(data) > maxConfiguration {
		return nil, fmt.Errorf("reading the image credential configuration %s: not a readable file of at most %d bytes", path, maxConfiguration)
	}
	c, err := parseConfiguration(data)
	if err != nil {
		return nil, fmt.Errorf("image credential configuration %s: %w", path, err)
	}
	return c, nil
}

func parseConfiguration(data []byte) (*Configuration, error) {
	var c Configuration
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		// The library tells how it got there first.
		text := strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: json: ")
		if strings.HasPrefix(text, "unknown field ") {
			text += "; known are apiVersion, kind, dockerConfig and registries, of these match, username, passwordFile, exec, helper and cacheDuration"
		}
		return nil, errors.New(text)
	}
	if c.APIVersion != ConfigurationVersion || c.Kind != ConfigurationKind {
		return nil, fmt.Errorf("is not of apiVersion %s, kind %s", ConfigurationVersion, ConfigurationKind)
	}
	if c.DockerConfig != "" && !filepath.IsAbs(c.DockerConfig) {
		return nil, errors.New("dockerConfig is a relative path; write it absolute, kubelet's directory may be any")
	}
	for i := range c.Registries {
		if err := c.Registries[i].check(); err != nil {
			return nil, fmt.Errorf("registries[%d]: %w", i, err)
		}
		for j := range i {
			if c.Registries[j].pattern.String() == c.Registries[i].pattern.String() {
				return nil, fmt.Errorf("registries[%d]: match %q is that of registries[%d], too; remove one", i, c.Registries[i].Match, j)
			}
		}
	}
	return &c, nil
}

func (r *Rule) check() (err error) {
	if r.pattern, err = ParsePattern(r.Match); err != nil {
		return fmt.Errorf("match: %w", err)
	}
	sources := 0
	for _, said := range []bool{r.PasswordFile != "", r.Exec != nil, r.Helper != ""} {
		if said {
			sources++
		}
	}
	switch {
	case sources != 1:
		return errors.New("needs exactly one of passwordFile, exec and helper")
	case r.Helper != "" && r.Username != "":
		return errors.New("username does not go with helper, which knows it")
	case r.Helper == "" && r.Username == "":
		return errors.New("needs a username; many registries take any with a token")
	case r.PasswordFile != "" && !filepath.IsAbs(r.PasswordFile):
		return errors.New("passwordFile is a relative path; write it absolute, kubelet's directory may be any")
	case r.Exec != nil && !filepath.IsAbs(r.Exec.Command):
		return errors.New("exec.command is not an absolute path; write one, kubelet's PATH may be any")
	}
	if r.Helper != "" {
		if err := credhelper.CheckName(r.Helper); err != nil {
			return fmt.Errorf("helper: %w", err)
		}
	}
	r.keep = defaultKeep
	if r.CacheDuration != "" {
		if r.keep, err = time.ParseDuration(r.CacheDuration); err != nil || r.keep < 0 || r.keep > maxKeep {
			return fmt.Errorf("cacheDuration %.40q is not a duration between 0s and %v", r.CacheDuration, maxKeep)
		}
	}
	return nil
}

// rule is the one that counts for an image. whole says that it, or its absence,
// holds for all of the registry: no rule has a path there.
func (c *Configuration) rule(im Image) (found *Rule, whole bool) {
	whole = true
	for i := range c.Registries {
		r := &c.Registries[i]
		if r.pattern.path != "" && r.pattern.matchesRegistry(im) {
			whole = false
		}
		if r.pattern.Matches(im) && (found == nil || r.pattern.outranks(found.pattern)) {
			found = r
		}
	}
	return found, whole
}
