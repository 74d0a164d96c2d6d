package transport

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"
)

// echo upgrades and sends back what it gets.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" || r.ProtoMajor != 1 {
		http.Error(w, "no upgrade here", http.StatusBadRequest)
		return
	}
	c, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
	_, _ = io.Copy(c, rw)
}

func upgradeRequest(t testing.TB, ctx context.Context) *http.Request {
	r := request(t, ctx, "GET", "/exec?command=ls&command=-la", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	return r
}

func TestUpgrade(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(echo))
	tr := s.client(t, nil)
	for i := range 3 {
		res, err := tr.Upgrade().RoundTrip(upgradeRequest(t, context.Background()))
		check(t, err)
		equal(t, "status", res.StatusCode, http.StatusSwitchingProtocols)
		equal(t, "open", tr.Stats().Upgrades, 1)
		rw := res.Body.(io.ReadWriteCloser)
		br := bufio.NewReader(rw)
		line, err := br.ReadString('\n')
		check(t, err)
		equal(t, "greeting", line, "hello\n")
		_, err = io.WriteString(rw, "ping\n")
		check(t, err)
		line, err = br.ReadString('\n')
		check(t, err)
		equal(t, "echo", line, "ping\n")
		check(t, rw.(interface{ CloseWrite() error }).CloseWrite())
		if _, err := br.ReadByte(); err != io.EOF {
			t.Errorf("after CloseWrite: %v", err)
		}
		check(t, rw.Close())
		equal(t, "connections", s.accepted.Load(), int64(i+1))
	}
	equal(t, "open at the end", tr.Stats().Upgrades, 0)
	equal(t, "signatures", tr.Stats().Signatures, 1)
}

func TestUpgradeRefused(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	}))
	tr := s.client(t, nil)
	for i := range 2 {
		res, err := tr.Upgrade().RoundTrip(upgradeRequest(t, context.Background()))
		check(t, err)
		equal(t, "status", res.StatusCode, http.StatusForbidden)
		_, err = io.ReadAll(res.Body)
		check(t, err)
		check(t, res.Body.Close())
		equal(t, "connections: none is kept", s.accepted.Load(), int64(i+1))
	}
	equal(t, "open at the end", tr.Stats().Upgrades, 0)
}

func TestUpgradeIsCut(t *testing.T) {
	for name, cut := range map[string]func(context.CancelFunc, *Transport){
		"by its context": func(cancel context.CancelFunc, _ *Transport) { cancel() },
		"by Close":       func(_ context.CancelFunc, tr *Transport) { _ = tr.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, serverOptions{}, http.HandlerFunc(echo))
			tr := s.client(t, nil)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			res, err := tr.Upgrade().RoundTrip(upgradeRequest(t, ctx))
			check(t, err)
			br := bufio.NewReader(res.Body)
			_, err = br.ReadString('\n')
			check(t, err)
			cut(cancel, tr)
			within(t, time.Second, "end", func() { _, err = br.ReadByte() })
			if err == nil || errors.Is(err, io.EOF) {
				t.Errorf("a cut looks like an end: %v", err)
			}
			_ = res.Body.Close()
		})
	}
}

func TestUpgradeFollowsRotation(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "who" {
			user(w, r)
			return
		}
		echo(w, r)
	}))
	tr := s.client(t, nil)
	res, err := tr.Upgrade().RoundTrip(upgradeRequest(t, context.Background()))
	check(t, err)
	check(t, tr.Rotate(Identity{Certificate: s.ca.issue(t, "bob", time.Now().Add(time.Hour)), RootCAs: s.ca.pool}))
	r := upgradeRequest(t, context.Background())
	r.Header.Set("Upgrade", "who")
	who, err := tr.Upgrade().RoundTrip(r)
	check(t, err)
	b, err := io.ReadAll(who.Body)
	check(t, err)
	check(t, who.Body.Close())
	equal(t, "new upgrade", string(b), "HTTP/1.1 bob")
	// The old one goes on.
	rw := res.Body.(io.ReadWriteCloser)
	br := bufio.NewReader(rw)
	_, _ = br.ReadString('\n')
	_, err = io.WriteString(rw, "still\n")
	check(t, err)
	line, err := br.ReadString('\n')
	check(t, err)
	equal(t, "old upgrade", line, "still\n")
	equal(t, "draining", tr.Stats().Draining, 1)
	check(t, rw.Close())
	drained(t, tr)
}
