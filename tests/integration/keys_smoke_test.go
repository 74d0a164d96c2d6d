//go:build linux

package integration

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

// These tests show that what the tests of keys stand on is there: keys in tokens
// and TPMs, made and used by other people's programs, and a cluster that signs
// certificates for them and takes these for what they say.

// request makes a certificate signing request, PEM.
func request(t *testing.T, key crypto.Signer, name string, groups ...string) []byte {
	t.Helper()
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}
	if _, ec := key.Public().(*ecdsa.PublicKey); ec {
		r.SignatureAlgorithm = x509.ECDSAWithSHA256
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// bearing is a client, straight to the API server, with a certificate for a key
// that signs SHA-256 digests, not PSS.
func bearing(t *testing.T, key crypto.Signer, certificate []byte) *kubernetes.Clientset {
	t.Helper()
	block, _ := pem.Decode(certificate)
	c := tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
	config := &tls.Config{RootCAs: suite.cluster.CA.Pool(), Certificates: []tls.Certificate{c}}
	if _, ec := key.Public().(*ecdsa.PublicKey); !ec {
		config.Certificates[0].SupportedSignatureAlgorithms = []tls.SignatureScheme{tls.PKCS1WithSHA256}
		config.MaxVersion = tls.VersionTLS12
	}
	return clientset(t, suite.cluster.API.URL, &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true})
}

func TestKeysSmoke(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	controller := certificateController(t)
	t.Logf("the certificate controllers are ready after %v, %d MiB resident", time.Since(begin), memoryOf(t, controller.PID(), "VmRSS")>>20)
	h := newHome(t)
	_, tok := h.softHSM("execproxy", "pin-2718")
	tpm := h.swtpm()
	made := func(key crypto.Signer, err error) crypto.Signer {
		t.Helper()
		need(t, err)
		return key
	}
	ctx := t.Context()
	need(t, tok.GenerateKey(ctx, "01", "ec", "EC:prime256v1"))
	need(t, tok.GenerateKey(ctx, "02", "rsa", "rsa:2048"))
	need(t, tpm.GenerateKey(ctx, 0x81010001, "ecc256", "secret"))
	need(t, tpm.GenerateKey(ctx, 0x81010002, "rsa2048", ""))
	for name, key := range map[string]crypto.Signer{
		"softhsm-ec":  made(tok.Signer(ctx, "01")),
		"softhsm-rsa": made(tok.Signer(ctx, "02")),
		"swtpm-ec":    made(tpm.Signer(ctx, 0x81010001, "secret")),
		"swtpm-rsa":   made(tpm.Signer(ctx, 0x81010002, "")),
	} {
		begin := time.Now()
		csr, err := submit(ctx, suite.admin, request(t, key, name, "dev"))
		must(t, err)
		approve(t, csr)
		pem := issued(t, csr)
		t.Logf("%s: a certificate after %v", name, time.Since(begin))
		leaf := parse(t, pem)
		if got := leaf.NotAfter.Sub(leaf.NotBefore); got != cluster.CertificateLife+cluster.Backdate {
			t.Errorf("%s: valid from %v to %v, that is %v", name, leaf.NotBefore, leaf.NotAfter, got)
		}
		if left := time.Until(leaf.NotAfter); left > cluster.CertificateLife || left < cluster.CertificateLife-patience {
			t.Errorf("%s: valid for another %v, want %v", name, left, cluster.CertificateLife)
		}
		if user, err := whoAmI(ctx, bearing(t, key, pem)); err != nil || user != name {
			t.Errorf("the API server sees %q, %v; want %s", user, err, name)
		}
	}

	// By way of p11-kit and of the shim, as a program in this home's environment sees it.
	kit := h.p11Kit(tok)
	shim := h.shim(kit.Module)
	login := []string{"pkcs11-tool", "--module", shim.Module, "--token-label", tok.Label, "--login", "--pin", tok.PIN, "--list-objects"}
	if out := h.run(login...).ok(t); !strings.Contains(out, "ec") {
		t.Errorf("through shim and server: %s", out)
	}
	kit.Kill()
	if r := h.run(login...); r.code == 0 {
		t.Errorf("through a server that was killed: %s", r)
	}
	must(t, kit.Start(ctx))
	must(t, shim.Set("C_Login", token.Return(0xa4)))
	if r := h.run(login...); r.code == 0 || !strings.Contains(r.stderr, "CKR_PIN_LOCKED") {
		t.Errorf("through a shim that says that the PIN is locked: %s", r)
	}
	if n, err := shim.Calls("C_Login"); err != nil || n != 2 {
		t.Errorf("%d logins were counted, %v; want 2", n, err)
	}
}

func parse(t *testing.T, certificate []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certificate)
	leaf, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	return leaf
}

// TestRequestsSmoke: who may ask for certificates, and what administrators answer.
func TestRequestsSmoke(t *testing.T) {
	t.Parallel()
	certificateController(t)
	ctx := t.Context()
	client := func(name string, groups ...string) (*kubernetes.Clientset, []byte) {
		t.Helper()
		h := newHome(t)
		cert, key := h.user(name, groups...)
		pair, err := tls.LoadX509KeyPair(cert, key)
		must(t, err)
		signer := pair.PrivateKey.(crypto.Signer)
		return bearing(t, signer, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})), request(t, signer, name, groups...)
	}
	stranger, csr := client("stranger", "dev")
	if _, err := submit(ctx, stranger, csr); !apierrors.IsForbidden(err) {
		t.Errorf("a stranger's request: %v", err)
	}
	eve, csr := client("eve", "enrollers")
	name, err := submit(ctx, eve, csr)
	must(t, err)
	if got := pending(t, "eve"); got.Name != name {
		t.Errorf("request %s is pending, want %s", got.Name, name)
	}
	deny(t, name, "NotToday", "come back tomorrow")
	denied, err := eve.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	if c := denied.Status.Conditions; len(c) != 1 || c[0].Type != certificates.CertificateDenied || c[0].Message != "come back tomorrow" {
		t.Errorf("the conditions of a request that was denied: %+v", c)
	}
	approved := approveAll(t, "eve")
	for n := 1; n <= 2; n++ {
		name, err := submit(ctx, eve, csr)
		must(t, err)
		if leaf := parse(t, issued(t, name)); leaf.Subject.CommonName != "eve" || approved() != n {
			t.Errorf("a certificate for %s, %d requests approved; want eve and %d", leaf.Subject, approved(), n)
		}
	}
}

// TestBuildSmoke: there is one program with cgo and one without.
func TestBuildSmoke(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	for _, want := range []string{"CGO_ENABLED=1", "CGO_ENABLED=0"} {
		h.execproxy("version").ok(t)
		if out := h.run("go", "version", "-m", h.bin).ok(t); !strings.Contains(out, want) {
			t.Errorf("%s: want %s in\n%s", h.bin, want, out)
		}
		h.withoutCGO()
	}
}
