//go:build !windows

package tpm

import (
	"crypto/sha256"
	"os"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

// TestToolsFile: files that tpm2-tools write, under every kind of parent.
func TestToolsFile(t *testing.T) {
	for name, parent := range map[string][]string{
		"tool's ECC": {"-G", "ecc"},
		"tool's RSA": {"-G", "rsa"},
		"format's":   {"-G", "ecc", "-a", "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|decrypt"},
		"TCG's RSA":  {"-G", "rsa", "-a", "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|decrypt"},
		"persistent": nil,
		"shared":     nil,
	} {
		kinds := []string{"ecc256"} // what kind of key it is does not matter to a parent
		if name == "format's" {
			kinds = append(kinds, "ecc384", "rsa2048")
		}
		for _, kind := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				s := newSWTPM(t)
				up := "parent.ctx"
				switch name {
				case "persistent":
					s.prepare("tpm2_createprimary", "-C", "o", "-G", "ecc", "-c", up)
					s.prepare("tpm2_evictcontrol", "-C", "o", "-c", up, "0x81000007")
					up = "0x81000007"
				case "shared": // a file that names the hierarchy, and means the key at 0x81000001
					s.prepare("tpm2_createprimary", "-C", "o", "-G", "ecc384", "-c", up)
					s.prepare("tpm2_evictcontrol", "-C", "o", "-c", up, "0x81000001")
				default:
					s.prepare(append([]string{"tpm2_createprimary", "-C", "o", "-c", up}, parent...)...)
				}
				s.prepare("tpm2_create", "-C", up, "-G", kind, "-u", "k.pub", "-r", "k.priv")
				s.prepare("tpm2_encodeobject", "-C", up, "-u", "k.pub", "-r", "k.priv", "-o", "k.pem")
				k := s.open(Options{File: s.file("k.pem")})
				signs(t, k)
				k.Close()
				s.empty()
			})
		}
	}
}

// TestToolsPassword: what tpm2-tools write about a key's password depends on their version.
func TestToolsPassword(t *testing.T) {
	for _, flag := range [][]string{nil, {"--key-auth"}} {
		s := newSWTPM(t)
		s.prepare("tpm2_createprimary", "-C", "o", "-G", "ecc", "-c", "parent.ctx")
		s.prepare("tpm2_create", "-C", "parent.ctx", "-G", "ecc256", "-p", "right", "-u", "k.pub", "-r", "k.priv")
		s.prepare(append([]string{"tpm2_encodeobject", "-C", "parent.ctx", "-u", "k.pub", "-r", "k.priv", "-o", "k.pem"}, flag...)...)
		p := &secret{value: "right"}
		signs(t, s.open(Options{File: s.file("k.pem"), Password: p}))
		if p.given == 0 || p.refused != 0 || s.variable("TPM2_PT_LOCKOUT_COUNTER") != 0 {
			t.Errorf("given %d times, refused %d times", p.given, p.refused)
		}
	}
}

// TestToolsHandle: a key that tpm2-tools put into the TPM.
func TestToolsHandle(t *testing.T) {
	s := newSWTPM(t)
	s.prepare("tpm2_createprimary", "-C", "o", "-c", "parent.ctx")
	s.prepare("tpm2_create", "-C", "parent.ctx", "-G", "ecc256", "-p", "right", "-c", "k.ctx")
	s.prepare("tpm2_evictcontrol", "-C", "o", "-c", "k.ctx", "0x81010001")
	k := s.open(Options{Handle: handle, Password: &secret{value: "right"}})
	signs(t, k)
	k.Close()
	s.empty()
}

// TestOpenSSL: the provider's files work here, and ours there.
func TestOpenSSL(t *testing.T) {
	for _, tc := range []struct {
		a   signer.Algorithm
		how []string
	}{
		{signer.ECP256, []string{"-algorithm", "EC", "-pkeyopt", "group:P-256"}},
		{signer.ECP384, []string{"-algorithm", "EC", "-pkeyopt", "group:P-384"}},
		{signer.RSA2048, []string{"-algorithm", "RSA", "-pkeyopt", "bits:2048"}},
	} {
		t.Run(string(tc.a), func(t *testing.T) {
			s := newSWTPM(t)
			s.prepare(append([]string{"openssl", "genpkey", "-provider", "tpm2", "-provider", "default", "-out", "theirs.pem"}, tc.how...)...)
			theirs := s.open(Options{File: s.file("theirs.pem")})
			signs(t, theirs)
			theirs.Close()
			s.create(Options{File: s.file("ours.pem")}, tc.a).Close()
			if err := os.WriteFile(s.file("data"), []byte("a handshake"), 0o600); err != nil {
				t.Fatal(err)
			}
			s.prepare("openssl", "dgst", "-provider", "tpm2", "-provider", "default", "-propquery", "?provider=tpm2", "-sha256", "-sign", "ours.pem", "-out", "sig", "data")
			sig, err := os.ReadFile(s.file("sig"))
			if err != nil {
				t.Fatal(err)
			}
			k := s.open(Options{File: s.file("ours.pem")})
			sum := sha256.Sum256([]byte("a handshake"))
			switch schemes := schemesOf(k.Public()); tc.a {
			case signer.RSA2048:
				err = schemes[3].verify(k.Public(), sum[:], sig)
			default:
				err = schemes[0].verify(k.Public(), sum[:], sig)
			}
			if err != nil {
				t.Errorf("openssl's signature with our key: %v", err)
			}
		})
	}
}

// TestOwnerPassword: machines whose owner hierarchy has a password keep a storage key for all.
func TestOwnerPassword(t *testing.T) {
	s := newSWTPM(t)
	s.prepare("tpm2_createprimary", "-C", "o", "-G", "rsa", "-c", "parent.ctx")
	s.prepare("tpm2_changeauth", "-c", "o", "owner-password")
	file := Options{Device: s.socket, File: s.file("key.pem"), Password: &secret{value: "right"}}
	_, err := Create(t.Context(), file, signer.ECP256)
	wants(t, err, ErrUnsupported, "0x81000001")
	s.prepare("tpm2_evictcontrol", "-C", "o", "-P", "owner-password", "-c", "parent.ctx", "0x81000001")
	k := s.create(file, signer.ECP256)
	signs(t, k)
	k.Close()
	_, err = Create(t.Context(), Options{Device: s.socket, Handle: handle}, signer.ECP256)
	wants(t, err, ErrUnsupported, "keep the key in a file")
	s.empty()
}

// TestParentPassword is not mistaken for the key's.
func TestParentPassword(t *testing.T) {
	s := newSWTPM(t)
	s.prepare("tpm2_createprimary", "-C", "o", "-G", "ecc", "-p", "parents", "-c", "parent.ctx")
	s.prepare("tpm2_evictcontrol", "-C", "o", "-c", "parent.ctx", "0x81000007")
	s.prepare("tpm2_create", "-C", "0x81000007", "-P", "parents", "-G", "ecc256", "-u", "k.pub", "-r", "k.priv")
	s.prepare("tpm2_encodeobject", "-C", "0x81000007", "-P", "parents", "-u", "k.pub", "-r", "k.priv", "-o", "k.pem")
	p := &secret{value: "keys"}
	_, err := Open(t.Context(), Options{Device: s.socket, File: s.file("k.pem"), Password: p})
	wants(t, err, ErrUnsupported, "parent has a password")
	if p.refused != 0 {
		t.Error("the key's password was called wrong")
	}
}

// TestParentGone: the persistent parent is not there on another TPM.
func TestParentGone(t *testing.T) {
	s := newSWTPM(t)
	s.prepare("tpm2_createprimary", "-C", "o", "-G", "ecc", "-c", "parent.ctx")
	s.prepare("tpm2_evictcontrol", "-C", "o", "-c", "parent.ctx", "0x81000007")
	s.prepare("tpm2_create", "-C", "0x81000007", "-G", "ecc256", "-u", "k.pub", "-r", "k.priv")
	s.prepare("tpm2_encodeobject", "-C", "0x81000007", "-u", "k.pub", "-r", "k.priv", "-o", "k.pem")
	s.prepare("tpm2_evictcontrol", "-C", "o", "-c", "0x81000007")
	_, err := Open(t.Context(), Options{Device: s.socket, File: s.file("k.pem")})
	wants(t, err, ErrOtherTPM, "0x81000007")
}

// TestUnusable: keys that cannot sign for TLS are refused with the reason.
func TestUnusable(t *testing.T) {
	const common = "fixedtpm|fixedparent|sensitivedataorigin|"
	for name, tc := range map[string]struct {
		args []string
		word string
	}{
		"restricted": {[]string{"-G", "ecc256:ecdsa-sha256:null", "-a", common + "userwithauth|restricted|sign"}, "restricted"},
		"decrypt":    {[]string{"-G", "rsa2048", "-a", common + "userwithauth|decrypt"}, "decrypts"},
		"fixed":      {[]string{"-G", "rsa2048:rsassa-sha256:null", "-a", common + "userwithauth|sign"}, "fixed to one"},
		"ECDSA":      {[]string{"-G", "ecc256:ecdsa-sha256:null", "-a", common + "userwithauth|sign"}, "fixed to one"},
		"policy":     {[]string{"-G", "ecc256", "-L", "policy", "-a", common + "sign"}, "policy"},
		"HMAC":       {[]string{"-G", "hmac"}, "neither"},
		"P-521":      {[]string{"-G", "ecc521"}, "neither P-256 nor P-384"},
		"sealed":     {nil, "sealed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSWTPM(t)
			s.prepare("tpm2_createprimary", "-C", "o", "-G", "ecc", "-c", "parent.ctx")
			if err := os.WriteFile(s.file("policy"), make([]byte, 32), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"tpm2_create", "-C", "parent.ctx", "-u", "k.pub", "-r", "k.priv", "-c", "k.ctx"}
			if name == "sealed" {
				s.prepare(append(args, "-i", "policy")...)
			} else {
				s.prepare(append(args, tc.args...)...)
			}
			s.prepare("tpm2_encodeobject", "-C", "parent.ctx", "-u", "k.pub", "-r", "k.priv", "-o", "k.pem")
			s.prepare("tpm2_evictcontrol", "-C", "o", "-c", "k.ctx", "0x81010001")
			for _, o := range []Options{{File: s.file("k.pem")}, {Handle: handle}} {
				o.Device = s.socket
				_, err := Open(t.Context(), o)
				word := tc.word
				if name == "sealed" {
					word = "key" // whatever the file calls it
				}
				wants(t, err, ErrUnsupported, word)
			}
			s.empty()
		})
	}
}
