//go:build unix

package pkcs11

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
)

func TestCertificates(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	now := time.Now()
	root := issue(t, "root", caKey.Public(), now.Add(-time.Hour), nil, caKey)
	middleKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	middle := issue(t, "middle", middleKey.Public(), now.Add(-time.Hour), root, caKey)

	const uri = "pkcs11:token=main;object=test"
	k := h.open(uri)
	old := issue(t, "old", k.Public(), now.Add(-2*time.Hour), root, caKey)
	check(t, k.StoreCertificate(t.Context(), [][]byte{old.Raw}))
	check(t, k.StoreCertificate(t.Context(), [][]byte{old.Raw})) // again does no harm
	if len(k.CertificateChain()) != 0 {
		t.Error("a Key that was handed out changed")
	}
	k2 := h.open(uri)
	if c := k2.CertificateChain(); len(c) != 1 || string(c[0]) != string(old.Raw) {
		t.Fatalf("chain of %d", len(c))
	}
	if want := "ECDSA P-256 key of CN=old at pkcs11:"; !strings.HasPrefix(k2.String(), want) {
		t.Errorf("it prints as %s", k2)
	}
	// The newer one, although it is on the token beside the old one if we die in between.
	fresh := issue(t, "fresh", k.Public(), now.Add(-time.Hour), middle, middleKey)
	check(t, k.StoreCertificate(t.Context(), [][]byte{fresh.Raw, middle.Raw, root.Raw}))
	k3 := h.open(uri)
	if c := k3.CertificateChain(); len(c) != 2 || string(c[0]) != string(fresh.Raw) || string(c[1]) != string(middle.Raw) {
		t.Errorf("chain of %d: want the new leaf and its issuer, without the root", len(c))
	}
	out := h.tool("--token-label", "main", "--list-objects", "--type", "cert")
	if strings.Contains(out, "CN=old") || !strings.Contains(out, "CN=fresh") || strings.Count(out, "Certificate Object") != 2 {
		t.Errorf("on the token:\n%s", out)
	}
	// A label that two keys have: the one with the newest valid certificate.
	second := h.create(uri+";id=%07", signer.ECP256)
	check(t, second.Close())
	if got := h.open(uri); !got.Public().(*ecdsa.PublicKey).Equal(k.Public()) {
		t.Error("the key without a certificate won")
	}
	expired := issue(t, "expired", second.Public(), now.Add(-48*time.Hour), root, caKey)
	second = h.open(uri + ";id=%07")
	check(t, second.StoreCertificate(t.Context(), [][]byte{expired.Raw}))
	if got := h.open(uri); !got.Public().(*ecdsa.PublicKey).Equal(k.Public()) {
		t.Error("the key with an expired certificate won")
	}
	future := issue(t, "future", second.Public(), now.Add(time.Hour), root, caKey)
	check(t, second.StoreCertificate(t.Context(), [][]byte{future.Raw}))
	if got := h.open(uri); !got.Public().(*ecdsa.PublicKey).Equal(k.Public()) {
		t.Error("the key whose certificate is not valid yet won")
	}
	newer := issue(t, "newer", second.Public(), now.Add(-time.Minute), root, caKey)
	check(t, second.StoreCertificate(t.Context(), [][]byte{newer.Raw}))
	if got := h.open(uri); !got.Public().(*ecdsa.PublicKey).Equal(second.Public()) {
		t.Error("the key with the older certificate won")
	}
	// A chain that is given names the key, too.
	given := h.open(uri, func(o *Options) { o.Chain = append(o.Chain, fresh, middle) })
	if !given.Public().(*ecdsa.PublicKey).Equal(k.Public()) || len(given.CertificateChain()) != 2 {
		t.Error("the given chain does not decide")
	}
	if err := h.openErr(uri, func(o *Options) { o.Chain = append(o.Chain, root) }); !errors.Is(err, ErrMismatch) {
		t.Errorf("with a foreign certificate: %v", err)
	}
	if err := k.StoreCertificate(t.Context(), [][]byte{root.Raw}); !errors.Is(err, ErrMismatch) {
		t.Errorf("stored a foreign certificate: %v", err)
	}
	if k.StoreCertificate(t.Context(), nil) == nil || k.StoreCertificate(t.Context(), [][]byte{[]byte("x")}) == nil {
		t.Error("stored nothing, or nonsense")
	}

	check(t, second.Destroy(t.Context()))
	if err := sign(second); !errors.Is(err, ErrClosed) {
		t.Errorf("after Destroy: %v", err)
	}
	if err := h.openErr(uri + ";id=%07"); !errors.Is(err, ErrNoKey) {
		t.Errorf("after Destroy: %v", err)
	}
	out = h.tool("--token-label", "main", "--list-objects")
	if strings.Contains(out, "newer") || strings.Count(out, "Public Key Object") != 1 || strings.Count(out, "Private Key Object") != 1 || !strings.Contains(out, "CN=fresh") {
		t.Errorf("after Destroy, on the token:\n%s", out)
	}
	check(t, sign(k))
}

// TestKeysOfOthers opens keys that other programs made, with their peculiarities.
func TestKeysOfOthers(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", "")
	make := func(args ...string) { h.tool(append([]string{"--token-label", "main", "--keypairgen"}, args...)...) }
	make("--key-type", "EC:prime256v1", "--label", "each", "--id", "01", "--always-auth")
	make("--key-type", "EC:secp384r1", "--label", "nameless")
	make("--key-type", "RSA:2048", "--label", "alone", "--id", "03")
	make("--key-type", "EC:prime256v1", "--label", "lonely", "--id", "04")
	make("--key-type", "EC:secp521r1", "--label", "big", "--id", "05")
	make("--key-type", "EC:secp256k1", "--label", "coin", "--id", "06")
	make("--key-type", "RSA:2048", "--label", "each-rsa", "--id", "07", "--always-auth")

	for _, name := range []string{"each", "nameless", "each-rsa", "big"} {
		k := h.open("pkcs11:token=main;object=" + name)
		check(t, sign(k))
		if name == "each" {
			h.clearLog()
			for range 3 {
				check(t, sign(k))
			}
			if got := h.calls("C_Login"); !slices.Equal(got, []string{"C_Login 2", "C_Login 2", "C_Login 2"}) {
				t.Errorf("logins for three signatures of a key that wants one for each: %q", got)
			}
			parallel(t, k, 16, 4)
		}
		if name == "each-rsa" && len(k.SupportedSignatureAlgorithms()) != 6 {
			t.Errorf("schemes %v", k.SupportedSignatureAlgorithms())
		}
		if name == "big" && !slices.Equal(k.SupportedSignatureAlgorithms(), []tls.SignatureScheme{tls.ECDSAWithP521AndSHA512}) {
			t.Errorf("schemes %v", k.SupportedSignatureAlgorithms())
		}
	}
	if err := h.openErr("pkcs11:token=main;object=coin"); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "curve") {
		t.Errorf("secp256k1: %v", err)
	}

	// The public key object is gone: RSA private keys tell it themselves, EC keys need a certificate.
	lonely := h.open("pkcs11:token=main;object=lonely")
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	leaf := issue(t, "lonely", lonely.Public(), time.Now().Add(-time.Hour), issue(t, "ca", ca.Public(), time.Now().Add(-time.Hour), nil, ca), ca)
	h.tool("--token-label", "main", "--delete-object", "--type", "pubkey", "--id", "03")
	h.tool("--token-label", "main", "--delete-object", "--type", "pubkey", "--id", "04")
	check(t, sign(h.open("pkcs11:token=main;object=alone")))
	if err := h.openErr("pkcs11:token=main;object=lonely"); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "no public key and no certificate") {
		t.Errorf("without its public key: %v", err)
	}
	check(t, lonely.StoreCertificate(t.Context(), [][]byte{leaf.Raw}))
	k := h.open("pkcs11:token=main;object=lonely")
	check(t, sign(k))
	if len(k.CertificateChain()) != 1 {
		t.Errorf("chain of %d", len(k.CertificateChain()))
	}
}
