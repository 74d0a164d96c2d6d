package daemon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

// changed is a copy of a configuration with a change.
func changed(c *config.Config, change func(*config.Config)) *config.Config {
	next := *c
	change(&next)
	return &next
}

func TestReload(t *testing.T) {
	api, c, p := playground(t)
	joan := strings.TrimSuffix(c.Key, "key.pem") + "joan.pem"
	writePair(t, api, joan, "joan")
	next, failure := c, error(nil)
	r := begin(t, c, Options{
		ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Loopback: []string{"127.0.0.1:0"}, Sockets: []string{p.Socket("serve")},
		Reload: func() (*config.Config, error) { return next, failure },
	})
	if got := r.d.front.Load().id.name(); got != "jane" {
		t.Fatal(got)
	}
	first := r.d.front.Load()
	for want, try := range map[string]*config.Config{
		"server, tlsServerName: cannot": changed(c, func(c *config.Config) { c.Server, c.TLSServerName = "https://127.0.0.1:1", "x" }),
		"listen: cannot":                changed(c, func(c *config.Config) { c.Listen = []string{"https://127.0.0.1:1"} }),
		"no-such.pem":                   changed(c, func(c *config.Config) { c.Key, c.Cert = "/no-such.pem", "/no-such.pem" }),
		"no-such-ca":                    changed(c, func(c *config.Config) { c.CertificateAuthority = "/no-such-ca" }),
		"unreadable":                    nil,
	} {
		next, failure = try, nil
		if try == nil {
			next, failure = nil, errors.New("unreadable")
		}
		if err := r.d.Reload("test"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if s := r.d.status(); s.Reload == nil || !strings.Contains(s.Reload.Error, want) || s.Identity != "jane" {
			t.Errorf("%q is not in the status: %+v", want, s.Reload)
		}
	}
	if r.d.front.Load() != first {
		t.Error("a bad configuration replaced something")
	}
	// What needs no new connection makes none.
	failure = nil
	next = changed(c, func(c *config.Config) { c.LogLevel, c.DrainTimeout = "error", 3*time.Second })
	if err := r.d.Reload("test"); err != nil || r.d.front.Load() != first || r.d.level.Level().String() != "ERROR" || r.d.said.Load().DrainTimeout != 3*time.Second {
		t.Errorf("%v, level %v, %v", err, r.d.level.Level(), r.d.said.Load().DrainTimeout)
	}
	next = changed(c, func(c *config.Config) { c.Key, c.Cert = joan, joan })
	if err := r.d.Reload("test"); err != nil {
		t.Fatal(err)
	}
	if s := r.d.status(); s.Identity != "joan" || s.Reload.Error != "" || r.d.level.Level().String() != "INFO" {
		t.Errorf("after the reload: %+v", s)
	}
	select { // nobody is served by the old one
	case <-first.last:
	case <-time.After(patience):
		t.Error("the old front is still open")
	}
	r.cancel()
	r.gone(t)
	if err := r.d.Reload("test"); !errors.Is(err, errEnding) {
		t.Errorf("after the end: %v", err)
	}
}

// What was written while the proxy was starting is not lost: nobody writes it again.
func TestChangeDuringStart(t *testing.T) {
	api, c, p := playground(t)
	joan := strings.TrimSuffix(c.Key, "key.pem") + "joan.pem"
	writePair(t, api, joan, "joan")
	c.File = joan // any file that does not change from now on
	r := begin(t, c, Options{
		ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{p.Socket("serve")},
		Reload: func() (*config.Config, error) {
			return changed(c, func(c *config.Config) { c.Key, c.Cert = joan, joan }), nil
		},
	})
	for end := time.Now().Add(patience); r.d.status().Identity != "joan"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it serves as " + r.d.status().Identity)
		}
	}
}

// A configuration that is gone is told like one that is wrong.
func TestConfigurationIsGone(t *testing.T) {
	_, c, p := playground(t)
	c.File = strings.TrimSuffix(c.Key, "key.pem") + "config.yaml"
	if err := os.WriteFile(c.File, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := begin(t, c, Options{
		ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{p.Socket("serve")},
		Reload: func() (*config.Config, error) {
			_, err := os.ReadFile(c.File)
			return c, err
		},
	})
	if err := os.Remove(c.File); err != nil {
		t.Fatal(err)
	}
	says := func(what string, said func(error string) bool) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if s := r.d.status().Reload; s != nil && said(s.Error) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %+v", what, r.d.status().Reload)
			}
		}
	}
	says("status says nothing of it", func(s string) bool { return strings.Contains(s, "config.yaml") })
	if err := os.WriteFile(c.File, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	says("status remembers what has been mended", func(s string) bool { return s == "" })
}

// Who would be told READY=1 in the middle of a start believes it.
func TestNoReloadBeforeReady(t *testing.T) {
	_, c, p := playground(t)
	path := p.Socket("serve")
	asked := make(chan error, 1)
	r := begin(t, c, Options{
		ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{path},
		Reload: func() (*config.Config, error) { return c, nil },
		Ready: func(*Daemon) error {
			_, err := Reconfigure(t.Context(), p, Status{ID: "serve"})
			asked <- err
			return nil
		},
	})
	if err := <-asked; err == nil || !strings.Contains(err.Error(), "starting") {
		t.Errorf("reloaded before it was ready: %v", err)
	}
	if read, err := Reconfigure(t.Context(), p, Status{ID: "serve"}); !read || err != nil || r.d.status().Reload == nil {
		t.Errorf("read %v, %v", read, err)
	}
}

// The PIN of the key before is not tried on the next one, also not by the reload after:
// a token locks itself.
func TestReloadForgetsPIN(t *testing.T) {
	api, c, p := playground(t)
	joan := strings.TrimSuffix(c.Key, "key.pem") + "joan.pem"
	writePair(t, api, joan, "joan")
	next := changed(c, func(c *config.Config) { c.Key, c.Cert = joan, joan })
	r := begin(t, c, Options{
		ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Sockets: []string{p.Socket("serve")},
		Reload: func() (*config.Config, error) { return next, nil },
	})
	first := r.d.homes.Kept
	if err := r.d.Reload("test"); err != nil {
		t.Fatal(err)
	}
	second := r.d.homes.Kept
	next = changed(next, func(c *config.Config) { c.DisableCompression = true })
	if err := r.d.Reload("test"); err != nil {
		t.Fatal(err)
	}
	if second == first || r.d.homes.Kept != second {
		t.Error("what unlocked the first key is kept for the second")
	}
}

// Every field that is named where a reload decides exists, and each that two
// configurations can differ in is seen.
func TestDifferences(t *testing.T) {
	var known []string
	for _, f := range config.Fields {
		known = append(known, f.JSON())
	}
	for _, name := range append(slices.Clone(needRestart), atOnce...) {
		if !slices.Contains(known, name) {
			t.Errorf("there is no field %q in %q", name, known)
		}
	}
	var each func(v reflect.Value)
	base := &config.Config{}
	each = func(v reflect.Value) {
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().Field(i).Name
			if v.Type().Field(i).Anonymous {
				each(f)
				continue
			}
			old := reflect.New(f.Type()).Elem()
			old.Set(f)
			switch f.Kind() {
			case reflect.String:
				f.SetString("x")
			case reflect.Bool:
				f.SetBool(true)
			case reflect.Int64:
				f.SetInt(1)
			case reflect.Slice:
				f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			default:
				t.Fatalf("%s is a %s", name, f.Kind())
			}
			if got := differences(&config.Config{}, base); (len(got) != 1 || got[0] == "") && name != "File" {
				t.Errorf("%s: %q", name, got)
			}
			f.Set(old)
		}
	}
	each(reflect.ValueOf(base).Elem())
	if got := differences(&config.Config{}, base); len(got) != 0 {
		t.Errorf("equal ones differ in %q", got)
	}
}

func TestHealthy(t *testing.T) {
	_, c, p := playground(t)
	r := begin(t, c, Options{ID: "serve", Life: lifeServe, Fixed: true, NoDrain: true, Places: p, Loopback: []string{"127.0.0.1:0"}, Sockets: []string{p.Socket("serve")}})
	select {
	case <-r.d.ready:
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	before := r.d.front.Load().proxy.Stats()
	if err := r.d.Healthy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := r.d.front.Load().proxy.Stats(); after.Requests != before.Requests {
		t.Error("our own question counts as a client's request")
	}
	// Nobody else gets that answer, also not with a certificate that looks the same.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(100, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	stranger := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}}}
	res, err := stranger.Get("https://" + r.d.Loopback() + "/")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a stranger is answered %s", res.Status)
	}
	// One of two listeners is gone.
	for _, l := range r.d.listeners {
		if strings.HasPrefix(l.url, "https://") {
			_ = l.server.Close()
			if err := r.d.Healthy(t.Context()); err == nil || !strings.Contains(err.Error(), l.url) {
				t.Errorf("without %s: %v", l.url, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.d.Healthy(ctx); err == nil {
		t.Error("healthy within no time")
	}
}
