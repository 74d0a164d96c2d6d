package clientauthentication

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// noon is the time of all goldens.
var noon = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

const (
	certPEM = "-----BEGIN CERTIFICATE-----\nMIIBleaf+/==\n-----END CERTIFICATE-----\n"
	keyPEM  = "-----BEGIN PRIVATE KEY-----\nMIIBkey+/==\n-----END PRIVATE KEY-----\n"
	caPEM   = "-----BEGIN CERTIFICATE-----\nMIIBca+/==\n-----END CERTIFICATE-----\n"
)

func pairOnly() *Status {
	return &Status{
		ExpirationTimestamp:   noon.Add(4*time.Minute + 300*time.Millisecond),
		ClientCertificateData: certPEM,
		ClientKeyData:         keyPEM,
	}
}

func withProxy() *Status {
	s := pairOnly()
	s.ProxyConfig = &ProxyConfig{URL: "unix:///run/user/1000/execproxy/3f9c.sock", CertificateAuthorityData: []byte(caPEM)}
	return s
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s\ngot  %s\nwant %s", name, got, want)
	}
}

func TestEncodeGoldens(t *testing.T) {
	for _, c := range []struct {
		name, version string
		status        *Status
	}{
		{"answer-v1-proxy.json", V1, withProxy()},
		{"answer-v1beta1-proxy.json", V1Beta1, withProxy()},
		{"answer-v1-pair.json", V1, pairOnly()},
		{"answer-v1beta1-pair.json", V1Beta1, pairOnly()},
		{"answer-v1-token.json", V1, &Status{Token: "a<b>&c"}},
	} {
		got, err := (&ExecCredential{APIVersion: c.version, Status: c.status}).encode(noon)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		golden(t, c.name, got)
		if bytes.Count(got, []byte("\n")) != 1 || !bytes.HasSuffix(got, []byte("\n")) {
			t.Errorf("%s: not one line: %q", c.name, got)
		}
		for _, empty := range []string{"null", `""`, "{}", "[]"} {
			if bytes.Contains(got, []byte(empty)) {
				t.Errorf("%s: has a field that is %s", c.name, empty)
			}
		}
		back, err := DecodeAnswer(bytes.NewReader(got))
		if err != nil {
			t.Errorf("%s: reading it back: %v", c.name, err)
			continue
		}
		want := *c.status
		want.ExpirationTimestamp = want.ExpirationTimestamp.Truncate(time.Second)
		if back.APIVersion != c.version || !equal(back.Status, &want) {
			t.Errorf("%s: read back as %#v", c.name, back)
		}
	}
}

func equal(a, b *Status) bool {
	x, y := *a, *b
	if !x.ExpirationTimestamp.Equal(y.ExpirationTimestamp) || (x.ProxyConfig == nil) != (y.ProxyConfig == nil) {
		return false
	}
	if p, q := x.ProxyConfig, y.ProxyConfig; p != nil {
		if p.URL != q.URL || !bytes.Equal(p.CertificateAuthorityData, q.CertificateAuthorityData) {
			return false
		}
	}
	x.ExpirationTimestamp, y.ExpirationTimestamp, x.ProxyConfig, y.ProxyConfig = time.Time{}, time.Time{}, nil, nil
	return x == y
}

// The caller's status is not changed by being encoded.
func TestEncodeLeavesStatus(t *testing.T) {
	s := withProxy()
	if _, err := (&ExecCredential{APIVersion: V1, Kind: Kind, Status: s}).encode(noon); err != nil {
		t.Fatal(err)
	}
	if !equal(s, withProxy()) {
		t.Errorf("the status is now %v", s)
	}
}

func TestEncodeRefuses(t *testing.T) {
	with := func(change func(s *Status)) *Status { s := withProxy(); change(s); return s }
	for _, c := range []struct {
		name, version, kind string
		status              *Status
		says                string
	}{
		{"no version", "", "", withProxy(), "no apiVersion"},
		{"old version", "client.authentication.k8s.io/v1alpha1", "", withProxy(), "v1alpha1 is not supported"},
		{"kind", V1, "Secret", withProxy(), "kind"},
		{"no status", V1, "", nil, "no status"},
		{"nothing", V1, "", &Status{}, "no credential"},
		{"only expiration", V1, "", &Status{ExpirationTimestamp: noon.Add(time.Hour)}, "no credential"},
		{"past", V1, "", with(func(s *Status) { s.ExpirationTimestamp = noon.Add(-time.Second) }), "expirationTimestamp 2026-03-14T11:59:59Z is past"},
		{"now", V1, "", with(func(s *Status) { s.ExpirationTimestamp = noon }), "is past"},
		{"past when truncated", V1, "", with(func(s *Status) { s.ExpirationTimestamp = noon.Add(999 * time.Millisecond) }), "is past"},
		{"no key", V1, "", with(func(s *Status) { s.ClientKeyData = "" }), "together"},
		{"no certificate", V1, "", with(func(s *Status) { s.ClientCertificateData = "" }), "together"},
		{"token", V1, "", with(func(s *Status) { s.Token = "t" }), "token beside proxyConfig"},
		{"no CA", V1, "", with(func(s *Status) { s.ProxyConfig.CertificateAuthorityData = nil }), "no certificate-authority-data"},
		{"no URL", V1, "", with(func(s *Status) { s.ProxyConfig.URL = "" }), "proxyConfig.url"},
		{"https", V1, "", with(func(s *Status) { s.ProxyConfig.URL = "https://127.0.0.1:1" }), "another scheme"},
		{"relative", V1, "", with(func(s *Status) { s.ProxyConfig.URL = "unix:a/b" }), "no absolute path"},
		{"host", V1, "", with(func(s *Status) { s.ProxyConfig.URL = "unix://a/b" }), "no absolute path"},
	} {
		got, err := (&ExecCredential{APIVersion: c.version, Kind: c.kind, Status: c.status}).encode(noon)
		if err == nil || got != nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v; want an error with %q", c.name, got, err, c.says)
		}
	}
	if _, err := (&ExecCredential{APIVersion: V1, Status: withProxy()}).Encode(); err == nil {
		t.Error("Encode does not look at the clock")
	}
}

func TestDecodeInfo(t *testing.T) {
	for _, version := range []string{V1, V1Beta1} {
		for _, kind := range []string{Kind, Kind + "s"} {
			data := fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"future":[1],"status":{"token":7},"spec":{"cluster":{
				"server":"https://k8s.example:6443","tls-server-name":"k8s","insecure-skip-tls-verify":true,
				"certificate-authority-data":"UEVN","proxy-url":"socks5://p:1","disable-compression":true,
				"config":{"auth": "mtls"},"serverName":"old","caData":"old","future":{}},
				"interactive":true,"lockFilePath":"/tmp/lock","future":null}}`+"\n", kind, version)
			c, err := DecodeInfo([]byte(data))
			if err != nil {
				t.Fatal(err)
			}
			cl := c.Spec.Cluster
			if c.APIVersion != version || c.Kind != Kind || c.Status != nil || !c.Spec.Interactive || c.Spec.LockFilePath != "/tmp/lock" || cl == nil {
				t.Fatalf("decoded %+v", c)
			}
			if cl.Server != "https://k8s.example:6443" || cl.TLSServerName != "k8s" || !cl.InsecureSkipTLSVerify ||
				string(cl.CertificateAuthorityData) != "PEM" || cl.ProxyURL != "socks5://p:1" || !cl.DisableCompression ||
				string(cl.Config) != `{"auth": "mtls"}` {
				t.Errorf("decoded %+v", *cl)
			}
		}
	}
}

func TestDecodeInfoWithout(t *testing.T) {
	for _, spec := range []string{
		`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}`,
		`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":null}`,
		`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"cluster":null,"interactive":false}}`,
	} {
		c, err := DecodeInfo([]byte(spec))
		if err != nil || c.Spec != (Spec{}) {
			t.Errorf("%s: %+v, %v", spec, c, err)
		}
	}
	c, err := DecodeInfo([]byte(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",
		"spec":{"cluster":{"server":"https://a","certificate-authority-data":null,"config":null}}}`))
	if err != nil || c.Spec.Cluster.Config != nil || c.Spec.Cluster.CertificateAuthorityData != nil {
		t.Errorf("null fields: %+v, %v", c, err)
	}
}

func TestDecodeInfoRefuses(t *testing.T) {
	const canary = "s3cr3t-canary"
	doc := func(rest string) string {
		return `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",` + rest
	}
	for _, c := range []struct{ name, data, says string }{
		{"missing", "", "KUBERNETES_EXEC_INFO is not set"},
		{"blank", " \n", "is not set"},
		{"text", canary, "not JSON, at byte 1"},
		{"cut", doc(`"spec":{"lockFilePath":"` + canary), "middle"},
		{"array", `["` + canary + `"]`, "not a JSON object"},
		{"string", `"` + canary + `"`, "not a JSON object"},
		{"null", `null`, "no apiVersion: it must be client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1"},
		{"type", doc(`"spec":{"interactive":"` + canary + `"}}`), "spec.interactive has the wrong type"},
		{"number", doc(`"spec":{"lockFilePath":123456789123456789}}`), "spec.lockFilePath has the wrong type"},
		{"base64", doc(`"spec":{"cluster":{"certificate-authority-data":"!` + canary + `"}}}`), "base64"},
		{"escape", doc(`"spec":{"lockFilePath":"\x` + canary + `"}}`), "not JSON"},
		{"two", doc(`"spec":{}}`) + doc(`"spec":{}}`), "one document"},
		{"junk behind", doc(`"spec":{}}`) + canary, "one document"},
		{"v1alpha1", strings.Replace(doc(`"spec":{}}`), "/v1", "/v1alpha1", 1), "apiVersion client.authentication.k8s.io/v1alpha1 is not supported: set client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1"},
		{"version", `{"apiVersion":"` + canary + `","kind":"ExecCredential"}`, "neither client.authentication.k8s.io/v1 nor client.authentication.k8s.io/v1beta1"},
		{"no kind", `{"apiVersion":"client.authentication.k8s.io/v1"}`, "kind is not ExecCredential"},
		{"kind", `{"apiVersion":"client.authentication.k8s.io/v1","kind":"` + canary + `"}`, "kind is not ExecCredential"},
		{"huge", doc(`"spec":{"lockFilePath":"` + strings.Repeat("x", MaxInfo) + `"}}`), "more than 1048576"},
		{"deep", doc(`"spec":`) + strings.Repeat("[", 100_000), "byte"},
	} {
		got, err := DecodeInfo([]byte(c.data))
		if err == nil || got != nil {
			t.Errorf("%s: decoded %v, %v", c.name, got, err)
			continue
		}
		if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), InfoVariable) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q does not say %q", c.name, err, c.says)
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error repeats what was read: %q", c.name, err)
		}
	}
}

func TestEncodeInfo(t *testing.T) {
	c := &ExecCredential{APIVersion: V1, Spec: Spec{
		Cluster:      &Cluster{Server: "https://k8s.example:6443", CertificateAuthorityData: []byte(caPEM), Config: []byte(`{"auth": "mtls"}`)},
		LockFilePath: "/run/user/1000/client/lock",
	}}
	got, err := c.EncodeInfo()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "info-v1.json", append(bytes.Clone(got), '\n'))
	back, err := DecodeInfo(got)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := back.EncodeInfo(); err != nil || !bytes.Equal(again, got) {
		t.Errorf("again: %s, %v", again, err)
	}
	for name, c := range map[string]*ExecCredential{
		"version": {},
		"server":  {APIVersion: V1, Spec: Spec{Cluster: &Cluster{}}},
		"config":  {APIVersion: V1, Spec: Spec{Cluster: &Cluster{Server: "https://a", Config: []byte(`{`)}}},
	} {
		if got, err := c.EncodeInfo(); err == nil {
			t.Errorf("%s: encoded %s", name, got)
		}
	}
}

func TestSocketPath(t *testing.T) {
	for url, want := range map[string]string{
		"unix:///run/a.sock":        "/run/a.sock",
		"unix:///a%20b%25":          "/a b%",
		"unix:/a":                   "/a",
		"":                          "",
		"/run/a.sock":               "",
		"unix://":                   "",
		"unix:///":                  "",
		"unix:relative":             "",
		"unix://host/a":             "",
		"unix://user@/a":            "",
		"unix:///a?":                "",
		"unix:///a?b=c":             "",
		"unix:///a#b":               "",
		"unix:///a%00b":             "",
		"unix:///%zz":               "",
		"unix:///a\nb":              "",
		"http://127.0.0.1/":         "",
		"UNIX:///a":                 "/a", // schemes have no case, RFC 3986 section 3.1
		"npipe:////./pipe/x":        "",
		"unix-abstract:///whatever": "",
	} {
		got, err := (&ProxyConfig{URL: url}).SocketPath()
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", url, got, err, want)
		}
	}
	for _, path := range []string{"/run/a.sock", "/with space", "/100%", "/a?b#c", "/ü", "//double", "/-"} {
		url, err := SocketURL(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, err := (&ProxyConfig{URL: url}).SocketPath(); got != path || err != nil {
			t.Errorf("%q became %q became %q, %v", path, url, got, err)
		}
	}
	if url, err := SocketURL("relative"); err == nil {
		t.Errorf("a relative path became %q", url)
	}
}

// Printed or logged, a credential shows what it has and not what that is.
func TestSecretsAreNotPrinted(t *testing.T) {
	s := withProxy()
	s.Token = "s3cr3t-canary"
	c := &ExecCredential{APIVersion: V1, Kind: Kind, Status: s}
	var out bytes.Buffer
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&out, format+format+format+format, c, *c, s, *s)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("x", "a", c, "b", *c, "c", s, "d", *s)
	}
	for _, secret := range []string{"canary", "MIIBkey", fmt.Sprintf("%x", "canary"), fmt.Sprintf("%x", "MIIBkey")} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q was printed:\n%s", secret, out.String())
		}
	}
	if !strings.Contains(out.String(), "clientKeyData") {
		t.Error("nothing of the credential was printed")
	}
}

// realPair makes a pair that TLS accepts.
func realPair(t testing.TB) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: noon.AddDate(50, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

func BenchmarkDecodeInfo(b *testing.B) {
	c := &ExecCredential{APIVersion: V1, Spec: Spec{
		Cluster:      &Cluster{Server: "https://k8s.example:6443", CertificateAuthorityData: bytes.Repeat([]byte("PEM "), 400), Config: []byte(`{"auth":"mtls"}`)},
		LockFilePath: "/run/user/1000/client/lock",
	}}
	data, err := c.EncodeInfo()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeInfo(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	c := &ExecCredential{APIVersion: V1, Status: withProxy()}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.encode(noon); err != nil {
			b.Fatal(err)
		}
	}
}
