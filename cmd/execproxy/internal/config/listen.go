package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

// A Listen is one address to listen on: a Unix socket's absolute path, or a
// loopback host and port.
type Listen struct {
	Network string // "unix" or "tcp"
	Address string // absolute path, or host:port
}

// ParseListen reads unix:///PATH or https://LOOPBACK:PORT. A listener that
// other machines could reach is refused.
func ParseListen(s string) (Listen, error) {
	u, err := url.Parse(s)
	if err != nil {
		return Listen{}, fmt.Errorf("%q is neither unix:///PATH nor https://127.0.0.1:PORT", s)
	}
	switch u.Scheme {
	case "unix":
		path := strings.TrimPrefix(s, "unix://")
		if !filepath.IsAbs(path) {
			return Listen{}, fmt.Errorf("%q: the path must be absolute: unix:///PATH", s)
		}
		return Listen{"unix", filepath.Clean(path)}, nil
	case "https":
		if u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" {
			return Listen{}, fmt.Errorf("%q: only https://HOST:PORT", Shown(u))
		}
		addr, err := LoopbackAddress(u)
		if err != nil {
			return Listen{}, fmt.Errorf("%q: %w", Shown(u), err)
		}
		return Listen{"tcp", addr}, nil
	}
	return Listen{}, fmt.Errorf("%q is neither unix:///PATH nor https://127.0.0.1:PORT", s)
}

// Listeners is what Listen says: paths of Unix sockets, and loopback host:ports.
func (c *Config) Listeners() (unix, loopback []string, err error) {
	for _, l := range c.Listen {
		a, err := ParseListen(l)
		if err != nil {
			return nil, nil, &FieldError{"", "listen", err}
		}
		if a.Network == "unix" {
			unix = append(unix, a.Address)
		} else {
			loopback = append(loopback, a.Address)
		}
	}
	return unix, loopback, nil
}

// ErrNotLoopback means an address that other machines could reach.
var ErrNotLoopback = errors.New("is not a loopback address; use 127.0.0.1 or [::1]")

// LoopbackAddress is the host:port of an https URL of this machine itself.
// localhost is 127.0.0.1 here, so that no resolver is asked.
func LoopbackAddress(u *url.URL) (string, error) {
	host := u.Hostname()
	if strings.EqualFold(host, "localhost") {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.IsLoopback() || ip.Zone() != "" {
		return "", ErrNotLoopback
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("port %q is not a number up to 65535", port)
	}
	// As the listener says it, so that the same address is seen to be the same.
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)).String(), nil
}
