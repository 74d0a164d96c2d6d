package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strconv"
)

// ErrPortTaken is wrapped by the error of [ListenLoopback] for a port on which another program listens.
var ErrPortTaken = errors.New("port is taken by another program")

// ListenLoopback listens on a loopback TCP address such as "127.0.0.1:41001" or "[::1]:0", where port 0 takes any free
// one. The host "localhost" is 127.0.0.1; it is not looked up. Every other address is refused.
//
// Any user of this machine can connect: whoever serves on it must ask for a certificate, and must look at the Host, as
// a browser can be made to connect too. Accept errors that pass are waited out, as by [Listener].
func ListenLoopback(addr string) (net.Listener, error) { return ListenConfig{}.ListenLoopback(addr) }

// ListenLoopback is the function [ListenLoopback] under this configuration.
func (c ListenConfig) ListenLoopback(addr string) (net.Listener, error) {
	ap, err := loopbackAddr(addr)
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: controlExclusive}
	l, err := lc.Listen(context.Background(), "tcp", ap.String())
	switch {
	case err == nil:
		return newPatient(l, logger(c.Logger)), nil
	case isAddrInUse(err):
		return nil, fmt.Errorf("listening on %s: %w: end that program or choose another port", ap, ErrPortTaken)
	case isAddrNotAvail(err):
		return nil, fmt.Errorf("listening on %s: this machine has no such address: try 127.0.0.1: %w", ap, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("listening on %s: not permitted: choose a port of 1024 or more: %w", ap, err)
	default:
		return nil, fmt.Errorf("listening on %s: %w", ap, err)
	}
}

func loopbackAddr(addr string) (netip.AddrPort, error) {
	bad := func(problem string) (netip.AddrPort, error) {
		return netip.AddrPort{}, fmt.Errorf("loopback address %q: %s: use one like 127.0.0.1:41001 or [::1]:41001", addr, problem)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return bad("not host:port")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return bad("the port is not a number from 0 to 65535")
	}
	if host == "" {
		return bad("without a host it would be open to the network")
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return bad("the host is not an IP address")
	}
	if ip = ip.Unmap(); !ip.IsLoopback() || ip.Zone() != "" {
		return bad("not a loopback address, it would be open to others")
	}
	return netip.AddrPortFrom(ip, uint16(n)), nil
}
