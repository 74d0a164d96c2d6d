package plugin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

const v1, beta = clientauthentication.V1, clientauthentication.V1Beta1

func document1(version, status string) string {
	return `{"apiVersion":"` + version + `","kind":"ExecCredential","status":` + status + `}`
}

// pairUntil is a status with a certificate that ends at a time.
func pairUntil(t testing.TB, from, to time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "jane"}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	s, err := json.Marshal(map[string]string{
		"clientCertificateData": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		"clientKeyData":         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(s)
}

func TestAnswer(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	pair := pairUntil(t, now.Add(-time.Hour), now.Add(time.Hour))
	for _, tt := range []struct{ name, version, text, want string }{
		{"a token", v1, document1(v1, `{"token":"canary"}`), ""},
		{"in v1beta1, on many lines", beta, "\n" + document1(beta, `{
			"token":"canary" }`) + "\n\n", ""},
		{"null expiry", v1, document1(v1, `{"token":"canary","expirationTimestamp":null}`), ""},
		{"a pair", v1, document1(v1, pair), ""},
		{"nothing", v1, "", "stdout is empty: run it by hand"},
		{"words", v1, "canary", "not JSON, at byte 1: run it by hand"},
		{"a log line behind", v1, document1(v1, `{"token":"canary"}`) + "\ncanary", "more than one document"},
		{"two documents", v1, document1(v1, `{"token":"canary"}`) + document1(v1, `{"token":"canary"}`), "more than one document"},
		{"v1beta1 for v1", v1, document1(beta, `{"token":"canary"}`), "asked for " + v1 + " and answered " + beta},
		{"v1 for v1beta1", beta, document1(v1, `{"token":"canary"}`), "asked for " + beta + " and answered " + v1},
		{"v1alpha1", v1, document1("client.authentication.k8s.io/v1alpha1", `{"token":"canary"}`), "asked for " + v1 + " and answered client.authentication.k8s.io/v1alpha1"},
		{"a strange version", v1, document1("canary", `{"token":"canary"}`), "apiVersion is neither"},
		{"no status", v1, `{"apiVersion":"` + v1 + `","kind":"ExecCredential"}`, "no status, hence no credential: run it by hand"},
		{"empty", v1, document1(v1, `{"token":""}`), "no credential"},
		{"half a pair", v1, document1(v1, `{"token":"canary","clientKeyData":"canary"}`), "together"},
		{"no PEM", v1, document1(v1, `{"clientCertificateData":"canary","clientKeyData":"canary"}`), "no pair in PEM"},
		{"a line end in the token", v1, document1(v1, `{"token":"canary\n"}`), "control character"},
		{"a scheme in the token", v1, document1(v1, `{"token":"Bearer canary"}`), "space"},
		{"over", v1, document1(v1, `{"token":"canary","expirationTimestamp":"2026-07-01T12:00:00Z"}`), "expired at 2026-07-01T12:00:00Z: log in"},
		{"a certificate that is over", v1, document1(v1, pairUntil(t, now.Add(-2*time.Hour), now.Add(-time.Hour))), "expired at 2026-07-01T11:00:00Z"},
		{"a certificate of tomorrow", v1, document1(v1, pairUntil(t, now.Add(time.Hour), now.Add(2*time.Hour))), "not valid before"},
		{"a proxy", v1, document1(v1, `{"proxyConfig":{"url":"unix:///a","certificate-authority-data":"UEVN"}}`), "proxy of its own"},
	} {
		s, err := answer([]byte(tt.text), tt.version, now)
		switch {
		case tt.want == "" && (err != nil || s == nil):
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "canary") || strings.ContainsAny(err.Error(), "\n\r")):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	// The sooner of two ends is the credential's.
	for text, want := range map[string]time.Time{
		pair: now.Add(time.Hour),
		strings.Replace(pair, "{", `{"expirationTimestamp":"2026-07-01T12:10:00Z",`, 1): now.Add(10 * time.Minute),
		strings.Replace(pair, "{", `{"expirationTimestamp":"2026-07-02T12:00:00Z",`, 1): now.Add(time.Hour),
	} {
		s, err := answer([]byte(document1(v1, text)), v1, now)
		if err != nil {
			t.Fatal(err)
		}
		if k, err := Usable(s, now); err != nil || !k.Expires.Equal(want) || Status(k).ClientKeyData != s.ClientKeyData {
			t.Errorf("%v, %v; want the end at %v", k, err, want)
		}
	}
}

// What is accepted can be handed on; what is not is told on one line without its secrets.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(document1(v1, `{"token":"a"}`)))
	f.Add([]byte(document1(beta, `{"token":"a","expirationTimestamp":"2999-01-01T00:00:00Z"}`)))
	f.Add([]byte(document1(v1, pairUntil(f, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)))))
	f.Add([]byte(document1(v1, `{"token":"a\u0000"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := answer(data, v1, time.Now())
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x00\x1b") {
				t.Fatalf("%q", err)
			}
			return
		}
		k, err := Usable(s, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if k.Expires.Year() > 9999 {
			return // RFC 3339 has no such year; with an offset it can be read
		}
		if _, err := (&clientauthentication.ExecCredential{APIVersion: v1, Status: Status(k)}).Encode(); err != nil {
			t.Fatalf("%v: %v", k, err)
		}
	})
}

func TestLastLine(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "",
		"a\nb\n\n":                           "b",
		"\x1b[31mred\x1b[0m\n":               "[31mred[0m",
		"token eyJhbGciOi.x.y refused":       "token … refused",
		"sent k8s-aws-v1.aHR0cHM6Ly9zdHM to": "sent … to",
		"see https://login.example/device?code=canary now":               "see https://login.example/device?… now",
		"open /home/me/.config/some/very/long/path/to/a/file: not found": "open /home/me/.config/some/very/long/path/to/a/file: not found",
		"secret " + strings.Repeat("a", 41):                              "secret …",
		strings.Repeat("word ", 100):                                     strings.Repeat("word ", 60) + "…",
	} {
		var l tail
		for _, b := range []byte(in) {
			_, _ = l.Write([]byte{b})
		}
		if got := l.line(); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
