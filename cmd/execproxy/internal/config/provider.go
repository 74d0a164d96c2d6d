package config

import (
	"encoding/json"
	"errors"
	"fmt"
)

// What the exec extension may say.
const (
	ExtensionAll     = "all"
	ExtensionCluster = "cluster"
)

// A kubeconfig is its user's own and may name keys, files and programs. What a
// ClusterProfile says is written by whoever may write that object, and is handed to a
// plugin that runs with another one's rights: it could load a library or send a file.
func setExtensionPolicy(c *Config, v string) error {
	if v != ExtensionAll && v != ExtensionCluster {
		return fmt.Errorf("%q is neither %q nor %q", v, ExtensionAll, ExtensionCluster)
	}
	c.ExtensionPolicy = v
	return nil
}

func setProvider(c *Config, v string) error {
	if !ProviderName(v) {
		return errors.New("must be up to 63 letters, digits, dots, slashes, underscores and dashes: it is a label of metrics")
	}
	c.Provider = v
	return nil
}

// ProviderName reports whether a name can be a label of metrics, and stay what it is
// wherever it is shown.
func ProviderName(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '/' && r != '_' && r != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// call is the beginning of a Config: what decides how the other sources are read.
func (s Sources) call() (*Config, error) {
	c, said := &Config{}, &Config{}
	if s.Environ != nil {
		if err := said.applyEnviron(s.Environ, s.Dir); err != nil {
			return nil, err
		}
	}
	if s.Flags != nil {
		if err := s.Flags(said); err != nil {
			return nil, err
		}
	}
	if s.Handed {
		c.ExtensionPolicy = said.ExtensionPolicy
	}
	return c, nil
}

// applyExtensionFields is applyDocument for the exec extension.
func (c *Config) applyExtensionFields(source string, doc map[string]json.RawMessage) error {
	if c.ExtensionPolicy != ExtensionCluster {
		return c.applyDocument(source, doc, "")
	}
	known := map[string]*Field{}
	for _, f := range Fields {
		switch {
		case f.noFile:
		case f.remote, f.upstream && !f.Path:
			known[f.JSON()] = f
		default:
			known[f.JSON()] = nil
		}
	}
	return c.applyFields(source, "", doc, known, "")
}

func notTheCluster(source, field string) error {
	return &FieldError{source, field, errors.New("is not for the cluster's extension to say, as it says something of this machine (--extension-policy cluster); say it in the plugin's own arguments")}
}

// CompleteIdentity is Complete for who we are, of a configuration that no cluster
// belongs to yet.
func (c *Config) CompleteIdentity() error { return c.checkIdentity() }
