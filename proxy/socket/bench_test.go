package socket

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
)

// What the peer check costs on a connection that is there.
func BenchmarkPeerUID(b *testing.B) {
	l, err := Listen(filepath.Join(tempDir(b), "s"))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Path())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := PeerUID(c); err != nil {
			b.Skip(err)
		}
	}
}

// A connection to a Listener and to the plain listener it is made of.
func BenchmarkAccept(b *testing.B) {
	dir := tempDir(b)
	guarded, err := Listen(filepath.Join(dir, "guarded"))
	if err != nil {
		b.Fatal(err)
	}
	plain, err := net.Listen("unix", filepath.Join(dir, "plain"))
	if err != nil {
		b.Fatal(err)
	}
	for name, l := range map[string]net.Listener{"guarded": guarded, "plain": plain} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c, err := net.Dial("unix", l.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				s, err := l.Accept()
				if err != nil {
					b.Fatal(err)
				}
				_, _ = c.Close(), s.Close()
			}
		})
		_ = l.Close()
	}
}

func BenchmarkGetCertificate(b *testing.B) {
	a := newTestAuthority(b, nil)
	config := a.ServerConfig([]string{"prod.example.com"}, a)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := config.GetCertificate(nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClientPair(b *testing.B) {
	a := newTestAuthority(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.ClientPair(); err != nil {
			b.Fatal(err)
		}
	}
}

// Both sides of a full handshake with a client pair.
func BenchmarkHandshake(b *testing.B) {
	a := newTestAuthority(b, nil)
	server := a.ServerConfig([]string{"prod.example.com"}, a)
	client := &tls.Config{RootCAs: pool(b, a), ServerName: "prod.example.com", Certificates: []tls.Certificate{*pairOf(b, a)}, MinVersion: tls.VersionTLS12}
	b.ReportAllocs()
	for b.Loop() {
		if err := handshake(server, client); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewAuthority(b *testing.B) {
	for b.Loop() {
		if _, err := NewAuthority(AuthorityOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLock(b *testing.B) {
	path := filepath.Join(tempDir(b), "l")
	b.ReportAllocs()
	for b.Loop() {
		l, err := TryAcquire(path)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(); err != nil {
			b.Fatal(err)
		}
	}
}
