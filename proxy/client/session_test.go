package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// forget has the next request make a new connection.
func forget(c *Client) { c.trip = newRoundTripper(c) }

// expire sets when the present document expires. A plugin that prints a file may still
// be about to exit, and looks like a proxy until then.
func expire(c *Client, in time.Duration) *session {
	s := c.present()
	<-s.plugin.done
	c.mu.Lock()
	defer c.mu.Unlock()
	s.expires = time.Now().Add(in)
	return s
}

// present returns the session as it is.
func (c *Client) present() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

func TestExpiry(t *testing.T) {
	b := newBench(t)
	a := mustAuthority(t)
	b.listen(a, a, nil)
	c := b.client("file")

	// Not soon: connections are made with the same document.
	b.answer(a.status(b.socket, time.Now().Add(time.Hour)))
	for range 3 {
		b.get(c, "/")
		forget(c)
	}
	b.executions(1)

	// Soon: it is used on, and a new one fetched meanwhile.
	old := expire(c, lead/2)
	b.get(c, "/")
	c.tasks.Wait()
	b.executions(2)
	if s := c.present(); s == old || s.tls != old.tls {
		t.Error("the same document again made another TLS configuration")
	}
	forget(c)
	b.get(c, "/")
	b.executions(2)

	// Past: it is not used. Open connections stay.
	expire(c, -time.Second)
	b.get(c, "/")
	b.executions(2)
	forget(c)
	b.get(c, "/")
	b.executions(3)
}

// A plugin that fails when the document is about to expire does no harm yet.
func TestExpiryWithoutNext(t *testing.T) {
	b := newBench(t)
	a := mustAuthority(t)
	b.listen(a, a, nil)
	b.answer(a.status(b.socket, time.Now().Add(time.Hour)))
	c := b.client("file")
	b.get(c, "/")
	expire(c, lead/2)
	b.answer(nil)
	forget(c)
	b.get(c, "/")
	c.tasks.Wait()
	b.executions(2)
	forget(c)
	b.get(c, "/")
	b.executions(2) // it rests
	expire(c, 0)
	forget(c)
	_, err := get(c, "/")
	mustSay(t, err, "no status")
}

// The plugin that is the proxy is not executed because its document expires, but
// because the pair does.
func TestExpiryInForeground(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	b.get(c, "/")
	c.mu.Lock()
	c.current.expires = time.Now().Add(-time.Second)
	c.mu.Unlock()
	forget(c)
	b.get(c, "/")
	b.executions(1)
	c.mu.Lock()
	c.current.notAfter = time.Now().Add(-time.Second)
	c.mu.Unlock()
	forget(c)
	b.get(c, "/")
	b.executions(2)
}

func TestEndOfPair(t *testing.T) {
	b := newBench(t)
	a := mustAuthority(t)
	b.listen(a, a, nil)
	var err error
	if a.pair, err = a.issueUntil("short", x509.ExtKeyUsageClientAuth, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b.answer(a.status(b.socket, time.Now().Add(time.Hour)))
	c := b.client("file")
	b.get(c, "/")
	if left := time.Until(c.present().end()); left > time.Minute {
		t.Errorf("%v left of a pair that ends within a minute", left)
	}
}

// A connection is left before its pair ends, however busy it is, and is not cut.
func TestConnectionsRetire(t *testing.T) {
	b := newBench(t)
	a := mustAuthority(t)
	p := b.listen(a, a, nil)
	b.answer(a.status(b.socket, time.Now().Add(time.Minute)))
	c := b.client("file")
	b.get(c, "/")
	if left := time.Until(c.trip.until); left < 50*time.Minute || left > 55*time.Minute {
		t.Errorf("a pair of an hour is used for %v more", left)
	}
	body, write := io.Pipe() // a request that is under way
	ended := make(chan error, 1)
	go func() {
		r, _ := http.NewRequest("POST", "https://k8s.example:6443/", body)
		s, err := do(c, r)
		if err == nil && s.Body != "still" {
			err = errors.New(s.Body)
		}
		ended <- err
	}()
	if _, err := write.Write([]byte("st")); err != nil {
		t.Fatal(err)
	}
	c.trip.mu.Lock()
	c.trip.until = time.Now().Add(-time.Second)
	c.trip.mu.Unlock()
	for range 3 {
		if s := b.get(c, "/"); s.Conns != 2 {
			t.Errorf("connection %d, want the second", s.Conns)
		}
	}
	if _, err := write.Write([]byte("ill")); err != nil {
		t.Error(err)
	}
	_ = write.Close()
	if err := <-ended; err != nil {
		t.Errorf("the request over the first connection: %v", err)
	}
	if n := p.conns.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
	// The end itself is not waited for, and there is no hurry where there is no end.
	c.trip.until = time.Time{}
	c.trip.retire(time.Time{})
	if !c.trip.until.IsZero() {
		t.Error("no pair, and yet an end")
	}
	c.trip.retire(time.Now().Add(lead))
	if left := time.Until(c.trip.until); left < lead/2 || left > lead {
		t.Errorf("%v more with a pair of %v", left, lead)
	}
}

// Another proxy has taken the socket, with a CA and pair of its own, as one does that
// somebody else has started again.
func TestAnotherProxy(t *testing.T) {
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.3": nil,
		"TLS 1.2": func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			one, two := mustAuthority(t), mustAuthority(t)
			b.answer(one.status(b.socket, time.Now().Add(time.Hour)))
			c := b.client("file")
			p := b.listen(one, one, change)
			b.get(c, "/")
			forget(c)
			p.close()

			// The same CA, and pairs of another: told only to the first request.
			p = b.listen(one, two, change)
			s := one.status(b.socket, time.Now().Add(time.Hour))
			s.ClientCertificateData, s.ClientKeyData = text(two.pair)
			b.answer(s)
			r, err := http.NewRequest("POST", "https://k8s.example:6443/", strings.NewReader("the body"))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := do(c, r); err != nil || got.Body != "the body" || got.Client != "session" {
				t.Errorf("%+v, %v", got, err)
			}
			b.executions(2)
			forget(c)
			p.close()

			// Another CA.
			b.listen(two, two, change)
			b.answer(two.status(b.socket, time.Now().Add(time.Hour)))
			together(t, 20, func() error { _, err := get(c, "/"); return err })
			b.executions(3)
		})
	}
}

// The plugin tells of a proxy, and what listens is not that.
func TestImpostor(t *testing.T) {
	b := newBench(t)
	one, two := mustAuthority(t), mustAuthority(t)
	b.listen(two, two, nil)
	b.answer(one.status(b.socket, time.Now().Add(time.Hour)))
	c := b.client("file")
	_, err := get(c, "/")
	mustSay(t, err, b.socket, "unknown authority")
	b.executions(2)
	_, err = get(c, "/")
	mustSay(t, err, "next attempt in")
	b.executions(2)
}

// The proxy never accepts the pair: an error, and a rest.
func TestPairNeverAccepted(t *testing.T) {
	b := newBench(t)
	one, two := mustAuthority(t), mustAuthority(t)
	b.listen(one, two, nil)
	b.answer(one.status(b.socket, time.Now().Add(time.Hour)))
	c := b.client("file")
	_, err := get(c, "/")
	mustSay(t, err, b.socket, "unknown certificate authority")
	b.executions(2)
	_, err = get(c, "/")
	mustSay(t, err, "next attempt in")
	b.executions(2)
}

func TestHTTP1(t *testing.T) {
	b := newBench(t)
	a := mustAuthority(t)
	b.listen(a, a, func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} })
	b.answer(a.status(b.socket, time.Now().Add(time.Hour)))
	c := b.client("file")
	together(t, 20, func() error {
		s, err := get(c, "/")
		if err == nil && s.Proto != "HTTP/1.1" {
			t.Error(s.Proto)
		}
		return err
	})
	b.executions(1)
}

// The name to prove is the server's, or the one that the kubeconfig gives.
func TestServerName(t *testing.T) {
	b := newBench(t)
	c := b.client("serve", func(o *Options) { o.Cluster.Server = "https://127.0.0.1:1"; o.Cluster.TLSServerName = "k8s.example" })
	r, _ := http.NewRequest("GET", "https://127.0.0.1:1/", nil)
	if _, err := do(c, r); err != nil {
		t.Error(err)
	}
	c = b.client("serve", func(o *Options) { o.Cluster.TLSServerName = "other.example"; o.Cluster.InsecureSkipTLSVerify = true })
	_, err := get(c, "/")
	mustSay(t, err, "other.example")
}
