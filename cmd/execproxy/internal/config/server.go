package config

import (
	"encoding/json"
	"fmt"
	"net/url"
)

// A Claim is a server as one source names it.
type Claim struct {
	Source string // "--server", "EXECPROXY_SERVER", "file …", "exec extension"
	Server string
}

// Claims are the servers that the sources name, each source asked alone, the
// strongest first. flag is what the command line says.
func Claims(s Sources, flag string) ([]Claim, error) {
	var claims []Claim
	claim := func(source, server string) {
		if server != "" {
			claims = append(claims, Claim{source, server})
		}
	}
	claim("--server", flag)
	if s.Environ != nil {
		v, _ := s.Environ("EXECPROXY_SERVER")
		claim("EXECPROXY_SERVER", v)
		if file, _ := s.Environ("EXECPROXY_CONFIG"); s.File == "" {
			s.File = file
		}
	}
	if s.File != "" {
		c, err := Load(Sources{File: s.File, Dir: s.Dir})
		if err != nil {
			return nil, err
		}
		claim("file "+c.File, c.Server)
	}
	var said struct { // which Load has decoded
		Server   string
		Upstream struct{ Server string }
		Config   string
	}
	_ = json.Unmarshal(s.Extension, &said)
	claim("exec extension: upstream.server", said.Upstream.Server)
	claim("exec extension: server", said.Server)
	if said.Config != "" && s.File == "" {
		c, err := Load(Sources{File: said.Config})
		if err != nil {
			return nil, err
		}
		claim("file "+c.File, c.Server)
	}
	return claims, nil
}

// SameServer reports whether two texts name the same API server: 443 is https's own
// port, and upper case means nothing in a host.
func SameServer(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := ServerURL(a)
	y, errY := ServerURL(b)
	return errX == nil && errY == nil && explicit(x) == explicit(y)
}

func explicit(u *url.URL) string {
	c := *u
	if c.Port() == "" {
		c.Host += ":443"
	}
	return c.String()
}

// ShowServer is a server for an error, without what may be a secret in it.
func ShowServer(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Sprintf("%q", redactURL(s))
	}
	return Shown(u)
}
