package enroll

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"io"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"
)

// limited is a key that says what it signs, does no more, and counts.
type limited struct {
	crypto.Signer
	schemes []tls.SignatureScheme
	asked   int
}

func (k *limited) SupportedSignatureAlgorithms() []tls.SignatureScheme { return k.schemes }

func (k *limited) Sign(r io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.asked++
	pss := false
	if _, ok := opts.(*rsa.PSSOptions); ok {
		pss = true
	}
	ok := slices.ContainsFunc(k.schemes, func(s tls.SignatureScheme) bool {
		switch s {
		case tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512:
			return pss
		}
		return !pss
	})
	if !ok {
		return nil, errors.New("mechanism invalid")
	}
	return k.Signer.Sign(r, digest, opts)
}

// mute hides what a limited key says.
type mute struct{ k *limited }

func (m mute) Public() crypto.PublicKey { return m.k.Public() }
func (m mute) Sign(r io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return m.k.Sign(r, digest, opts)
}

func TestNewRequest(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	ec := func(c elliptic.Curve) crypto.Signer {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		must(t, err)
		return k
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	pss := &limited{Signer: rsaKey, schemes: []tls.SignatureScheme{tls.PSSWithSHA384, tls.PSSWithSHA512}}
	both := &limited{Signer: rsaKey, schemes: []tls.SignatureScheme{tls.PSSWithSHA256, tls.PKCS1WithSHA256}}
	for _, tc := range []struct {
		name string
		key  crypto.Signer
		want x509.SignatureAlgorithm
	}{
		{"P-256", ec(elliptic.P256()), x509.ECDSAWithSHA256},
		{"P-384", ec(elliptic.P384()), x509.ECDSAWithSHA384},
		{"P-521", ec(elliptic.P521()), x509.ECDSAWithSHA512},
		{"Ed25519", ed, x509.PureEd25519},
		{"RSA", rsaKey, x509.SHA256WithRSA},
		{"RSA with both", both, x509.SHA256WithRSA},
		{"RSA with PSS alone", pss, x509.SHA384WithRSAPSS},
		{"RSA that does not say that it has PSS alone", mute{pss}, x509.SHA256WithRSAPSS},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pss.asked = 0
			text, err := NewRequest(tc.key, jane)
			must(t, err)
			csr, err := parseRequest(text)
			must(t, err)
			if csr.SignatureAlgorithm != tc.want || csr.Subject.String() != "CN=jane,O=dev+O=ops" || !equalKeys(csr.PublicKey, tc.key.Public()) {
				t.Errorf("%v, %s", csr.SignatureAlgorithm, csr.Subject)
			}
			if tc.key == crypto.Signer(pss) && pss.asked != 1 {
				t.Errorf("a key that says what it signs was asked %d times", pss.asked)
			}
		})
	}

	for name, tc := range map[string]struct {
		key     crypto.Signer
		subject pkix.Name
		want    string
	}{
		"no name":      {rsaKey, pkix.Name{Organization: []string{"dev"}}, "no common name"},
		"curve":        {ec(elliptic.P224()), jane, "ec-p256"},
		"no scheme":    {&limited{Signer: rsaKey}, jane, "neither PKCS #1"},
		"cannot sign":  {mute{&limited{Signer: rsaKey}}, jane, "signing the certificate request: mechanism invalid"},
		"strange kind": {strange{}, jane, "make a key of another kind"},
		"lies":         {liar{ec(elliptic.P256()), ec(elliptic.P256())}, jane, "signing the certificate request"},
	} {
		if _, err := NewRequest(tc.key, tc.subject); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type strange struct{ crypto.Signer }

func (strange) Public() crypto.PublicKey { return 1 }

// liar signs with another key than the one it shows.
type liar struct {
	crypto.Signer
	shown crypto.Signer
}

func (l liar) Public() crypto.PublicKey { return l.shown.Public() }

func TestDefaultSigner(t *testing.T) {
	for _, tc := range []struct {
		subject pkix.Name
		want    string
	}{
		{jane, SignerClient},
		{pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}, SignerKubelet},
		{pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes", "dev"}}, SignerClient},
		{pkix.Name{CommonName: "system:node:n1"}, SignerClient},
		{pkix.Name{CommonName: "n1", Organization: []string{"system:nodes"}}, SignerClient},
	} {
		if got := DefaultSigner(tc.subject); got != tc.want {
			t.Errorf("%s: %s", tc.subject, got)
		}
	}
}

// TestRenewal: the subject stays as it is, to the byte, and so does the life.
func TestRenewal(t *testing.T) {
	key := newKey(t)
	// An attribute without a field in pkix.Name (a user's uid), and an odd order.
	raw, err := asn1.Marshal(pkix.RDNSequence{
		{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "jane"}},
		{{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: "uid-1"}},
		{{Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: "dev"}},
	})
	must(t, err)
	for _, tc := range []struct {
		life   time.Duration
		signer string
		want   time.Duration
	}{
		{15 * time.Minute, "", 10 * time.Minute}, // dated back by five
		{time.Hour + 5*time.Minute, "", time.Hour},
		{24 * time.Hour, "", 24 * time.Hour},
		{8 * time.Hour, "", 8 * time.Hour},
		{time.Hour, "example.com/signer", time.Hour},
		{time.Minute, "example.com/signer", MinExpiration},
	} {
		now := time.Now()
		template := &x509.Certificate{SerialNumber: big.NewInt(1), RawSubject: raw, NotBefore: now, NotAfter: now.Add(tc.life)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		must(t, err)
		current, err := x509.ParseCertificate(der)
		must(t, err)
		o, err := Renewal(key, current, tc.signer)
		must(t, err)
		csr, err := parseRequest(o.CSR)
		must(t, err)
		if string(csr.RawSubject) != string(raw) || o.Expiration != tc.want || o.Name != "" {
			t.Errorf("%v of %q: subject %x, expiration %v", tc.life, tc.signer, csr.RawSubject, o.Expiration)
		}
		again, err := Renewal(key, current, tc.signer)
		must(t, err)
		if digest(csr, o.Salt, 0) != digest(csr, again.Salt, 0) {
			t.Error("renewing the same twice makes two names")
		}
	}
}

// otherCertificate is one of the same signer for another key.
func otherCertificate(a *api) []byte {
	csr, err := parseRequest(newOrder(a.t, newKey(a.t)).CSR)
	must(a.t, err)
	return a.certificate(csr, time.Hour)
}

func base64Of(text []byte) string { return base64.StdEncoding.EncodeToString(text) }
