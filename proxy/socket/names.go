package socket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// names are what a server certificate is for.
type names struct {
	dns []string
	ips []net.IP
}

func loopbackNames() names {
	return names{dns: []string{"localhost"}, ips: []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback}}
}

// parseNames sorts hosts, as a URL or a tls-server-name has them, into DNS names and addresses. A host that no client
// could verify is an error, as a certificate for it would only fail later and tell less.
func parseNames(hosts []string) (names, error) {
	var n names
	for _, h := range hosts {
		host := h
		if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
			host = h[1 : len(h)-1]
		}
		if ip, err := netip.ParseAddr(host); err == nil {
			b := net.IP(ip.Unmap().WithZone("").AsSlice())
			if !slices.ContainsFunc(n.ips, b.Equal) {
				n.ips = append(n.ips, b)
			}
			continue
		}
		host = strings.ToLower(strings.TrimSuffix(h, "."))
		if !isHostname(host) {
			return names{}, fmt.Errorf("server name %q: neither an IP address nor a DNS name: give the host alone, without scheme or port, in ASCII", h)
		}
		if !slices.Contains(n.dns, host) {
			n.dns = append(n.dns, host)
		}
	}
	if len(n.dns)+len(n.ips) == 0 {
		return names{}, errors.New("no server name to make a certificate for: give the API server's host")
	}
	return n, nil
}

// isHostname takes what crypto/x509 takes as a host, underscores included; no wildcard, as a proxy stands for one
// server.
func isHostname(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			switch {
			case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return false
			}
		}
	}
	return true
}

// loopbackOnly reports the first name that is not of this machine's loopback.
func (n names) loopbackOnly() error {
	for _, d := range n.dns {
		if d != "localhost" && !strings.HasSuffix(d, ".localhost") {
			return fmt.Errorf("server name %q: not a loopback name, and the loopback CA is for nothing else: use localhost, 127.0.0.1 or ::1", d)
		}
	}
	for _, ip := range n.ips {
		if !isLoopbackIP(ip) {
			return fmt.Errorf("server address %s: not a loopback address, and the loopback CA is for nothing else: use localhost, 127.0.0.1 or ::1", ip)
		}
	}
	return nil
}

func isLoopbackIP(ip net.IP) bool {
	return slices.ContainsFunc(loopbackRanges(), func(r *net.IPNet) bool { return r.Contains(ip) })
}

func loopbackRanges() []*net.IPNet {
	return []*net.IPNet{
		{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
		{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
	}
}
