package socket

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestListenLoopback(t *testing.T) {
	for addr, host := range map[string]string{
		"127.0.0.1:0": "127.0.0.1", "localhost:0": "127.0.0.1", "127.8.9.10:0": "127.8.9.10",
		"[::1]:0": "::1", "[::ffff:127.0.0.1]:0": "127.0.0.1",
	} {
		l, err := ListenLoopback(addr)
		if err != nil {
			if strings.Contains(err.Error(), "no such address") {
				t.Logf("%s: %v", addr, err)
				continue
			}
			t.Fatal(err)
		}
		got, _, err := net.SplitHostPort(l.Addr().String())
		if err != nil || got != host {
			t.Errorf("%s listens on %s", addr, l.Addr())
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _, _ = c.Close(), s.Close(), l.Close()
	}
}

func TestListenLoopbackRefuses(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0:41001":             "not a loopback address",
		"[::]:41001":                "not a loopback address",
		"192.168.1.1:41001":         "not a loopback address",
		"[::ffff:10.0.0.1]:41001":   "not a loopback address",
		"[::1%lo]:41001":            "not a loopback address",
		"169.254.169.254:80":        "not a loopback address",
		":41001":                    "open to the network",
		"41001":                     "not host:port",
		"127.0.0.1":                 "not host:port",
		"":                          "not host:port",
		"127.0.0.1:":                "not a number",
		"127.0.0.1:https":           "not a number",
		"127.0.0.1:65536":           "not a number",
		"127.0.0.1:-1":              "not a number",
		"127.1:41001":               "not an IP address",
		"0x7f.0.0.1:41001":          "not an IP address",
		"example.com:41001":         "not an IP address",
		"localhost.:41001":          "not an IP address",
		"https://127.0.0.1:41001":   "not host:port",
		"127.0.0.1.example.com:443": "not an IP address",
	} {
		l, err := ListenLoopback(addr)
		if err == nil {
			_ = l.Close()
			t.Errorf("%q listens on %s", addr, l.Addr())
			continue
		}
		oneLine(t, err, want, "127.0.0.1:41001")
	}
}

func TestListenLoopbackPortTaken(t *testing.T) {
	for _, by := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		taken, err := net.Listen("tcp4", by)
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(taken.Addr().String())
		l, err := ListenLoopback("127.0.0.1:" + port)
		if err == nil {
			_ = l.Close()
			t.Fatalf("shares the port with %s", taken.Addr())
		}
		oneLine(t, err, "127.0.0.1:"+port, "taken", "choose another port")
		if !errors.Is(err, ErrPortTaken) {
			t.Errorf("not ErrPortTaken: %v", err)
		}
		_ = taken.Close()
	}
}

func FuzzLoopbackAddr(f *testing.F) {
	for _, s := range []string{"127.0.0.1:1", "[::1]:0", "localhost:65535", "0.0.0.0:1", ":1", "[::ffff:127.0.0.1]:1", "[::1%25lo]:1", "127.0.0.1:+1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ap, err := loopbackAddr(s)
		if err != nil {
			oneLine(t, err)
			return
		}
		if ip := net.ParseIP(ap.Addr().String()); ip == nil || !ip.IsLoopback() || ap.Addr().Is4In6() {
			t.Errorf("%q passed as %s", s, ap)
		}
		if again, err := netip.ParseAddrPort(ap.String()); err != nil || again != ap {
			t.Errorf("%q came back as %s: %v", s, again, err)
		}
	})
}
